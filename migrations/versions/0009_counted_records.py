"""Records counted by workload and target as they are stored, and an index that has all that a workload's jobs need."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COUNTED = """
    INSERT INTO record_counts (workload_id, target_id, records)
    SELECT workload_id, target_id, count(*) FROM tuning_records GROUP BY workload_id, target_id
"""


def upgrade() -> None:
    connection = op.get_bind()
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "record_counts",
        sa.Column("workload_id", number, nullable=False),
        sa.Column("target_id", number, nullable=False),
        sa.Column("records", number, nullable=False),
        sa.PrimaryKeyConstraint("workload_id", "target_id", name="pk_record_counts"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_record_counts_workload_id"),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_record_counts_target_id"),
    )
    if connection.dialect.name == "postgresql":
        # A worker that still runs must not add a record that is not counted.
        op.execute("LOCK TABLE tuning_records IN SHARE ROW EXCLUSIVE MODE")
    op.execute(COUNTED)
    columns = ["workload_id", "target_id", "job_id"]
    op.create_index("ix_search_tasks_workload_id_target_id_job_id", "search_tasks", columns)
