"""The instances at which a workload was measured, each once: those near a shape are looked up among them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SCOPE = ("workload_id", "target_id", "threads", "protocol", "instance")
latencies = sa.table("kernel_latencies", *map(sa.column, SCOPE))
instances = sa.table("measured_instances", *map(sa.column, SCOPE))


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        # A worker that still runs must not add a kernel behind the statement that reads them.
        connection.execute(sa.text("LOCK TABLE kernel_latencies IN SHARE ROW EXCLUSIVE MODE"))
    op.create_table(
        "measured_instances",
        *(sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False) for name in SCOPE[:2]),
        sa.Column("threads", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(*SCOPE, name="pk_measured_instances"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_measured_instances_workload_id_workloads"),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_measured_instances_target_id_targets"),
    )
    connection.execute(sa.insert(instances).from_select(list(SCOPE), sa.select(*latencies.c).distinct()))
