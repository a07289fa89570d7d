"""Records of other databases: what identifies them, and where they came from; failed trials by kind.

Rows that are there were measured here, and have neither.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_records", sa.Column("uid", sa.Text))
    op.add_column("tuning_records", sa.Column("origin", sa.JSON))
    imported, failed = sa.text("uid IS NOT NULL"), sa.text("error_kind IS NOT NULL")
    op.create_index(
        "ix_tuning_records_uid",
        "tuning_records",
        ["uid"],
        unique=True,
        sqlite_where=imported,
        postgresql_where=imported,
    )
    op.create_index(
        "ix_tuning_records_failed",
        "tuning_records",
        ["error_kind", "created_at"],
        sqlite_where=failed,
        postgresql_where=failed,
    )
