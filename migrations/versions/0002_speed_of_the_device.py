"""How fast a device ran while it measured: the time of a fixed piece of work, beside every latency."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_records", sa.Column("anchor_s", sa.Double))
