"""Tokens by which devices join, how each device last did, and those that were refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "device_tokens",
        sa.Column("number", BIG, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("stored_key", sa.Text, nullable=False),
        sa.Column("required", sa.Boolean, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.Column("last_used_at", INSTANT),
        sa.PrimaryKeyConstraint("number", name="pk_device_tokens"),
        sa.UniqueConstraint("id", name="uq_device_tokens_id"),
    )
    op.create_table(
        "refused_devices",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("first_at", INSTANT, nullable=False),
        sa.Column("seen_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", "address", name="pk_refused_devices"),
    )
    op.create_index("ix_refused_devices_seen_at", "refused_devices", ["seen_at"])
    op.add_column("devices", sa.Column("token_id", sa.Text))
    op.add_column("devices", sa.Column("server", sa.Text))
