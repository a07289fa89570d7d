"""How fast a device was lately, beside how fast it usually is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("speed", sa.JSON))
