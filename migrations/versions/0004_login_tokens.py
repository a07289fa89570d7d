"""One-time tokens that a browser exchanges for a key of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "login_tokens",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("secret_sha256", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("api_key_id", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("used_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_login_tokens"),
        sa.UniqueConstraint("secret_sha256", name="uq_login_tokens_secret_sha256"),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name="fk_login_tokens_api_key_id"),
    )
    op.create_index("ix_login_tokens_api_key_id", "login_tokens", ["api_key_id"])
