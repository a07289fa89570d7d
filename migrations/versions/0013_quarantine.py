"""Devices that fail are counted, and quarantined: until a moment, or until somebody releases them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    op.add_column("devices", sa.Column("failures", sa.Integer, nullable=False, server_default="0"))
    op.add_column("devices", sa.Column("reason", sa.Text, nullable=False, server_default=""))
    op.add_column("devices", sa.Column("quarantined_until", INSTANT))
