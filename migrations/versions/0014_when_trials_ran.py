"""When a trial ran on its device, and an index of what each device measured lately."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ON_DEVICE = sa.text("device IS NOT NULL AND search_task_id IS NOT NULL")


def upgrade() -> None:
    op.add_column("tuning_records", sa.Column("stored_after_s", sa.Double()))
    op.create_index(
        "ix_tuning_records_device",
        "tuning_records",
        ["device", "created_at", "search_task_id", "run_s", "stored_after_s", "error_kind"],
        sqlite_where=ON_DEVICE,
        postgresql_where=ON_DEVICE,
    )
