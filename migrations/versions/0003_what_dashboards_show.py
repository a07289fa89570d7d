"""What dashboards show beside latencies: the device of each trial, and what the kernels of a task are compared with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_records", sa.Column("device", sa.Text))
    op.add_column("search_tasks", sa.Column("baselines", sa.JSON))
