"""Tags and notes of jobs, and searches of the list of jobs that are saved under a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tuner.storage.sql.columns import BigInt, Instant

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("tags", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("note", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "saved_filters",
        sa.Column("number", BigInt, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_saved_filters"),
        sa.UniqueConstraint("owner", "name", name="uq_saved_filters_owner_name"),
    )
