"""What was measured of a device for theory: one calibration for each target and number of threads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("calibrations", sa.JSON))
