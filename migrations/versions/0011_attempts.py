"""Failed attempts at a job: counted, with the moment of the next one. The index of the queue has that, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
QUEUE = ["state", "device", "priority", "owner", "number"]


def upgrade() -> None:
    op.add_column("jobs", sa.Column("failed_attempts", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("trials_at_failure", BIG, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("not_before", INSTANT))
    op.drop_index("ix_jobs_state_device_priority_owner_number", "jobs")
    queue = [*QUEUE, "not_before"]
    op.create_index(f"ix_jobs_{'_'.join(queue)}", "jobs", queue)
