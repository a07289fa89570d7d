"""Who may do what: scopes, owners, quotas, priorities, webhooks and the audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
EVERY_SCOPE = '["read", "submit", "admin"]'
"""Of the keys that exist: they keep all they could do. A default of the database, for processes of the version before
that still make keys."""


def upgrade() -> None:
    _keys()
    _jobs()
    _audit()
    _webhooks()


def _keys() -> None:
    op.add_column("api_keys", sa.Column("scopes", sa.JSON, nullable=False, server_default=EVERY_SCOPE))
    op.add_column("api_keys", sa.Column("owner", sa.Text, nullable=False, server_default=""))
    op.add_column("api_keys", sa.Column("expires_at", INSTANT))
    op.add_column("api_keys", sa.Column("last_used_at", INSTANT))
    op.add_column("api_keys", sa.Column("quota", sa.JSON))


def _jobs() -> None:
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("budget_trials", BIG))
    op.add_column("jobs", sa.Column("budget_seconds", sa.Double))
    op.add_column("jobs", sa.Column("webhook", sa.JSON))
    queue = ["state", "device", "priority", "owner", "number"]
    op.create_index("ix_jobs_state_device_priority_owner_number", "jobs", queue)
    op.create_index("ix_jobs_owner_started_at", "jobs", ["owner", "started_at"])
    op.create_index("ix_jobs_owner_ended_at", "jobs", ["owner", "ended_at"])


def _audit() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_subject_id", "audit_log", ["subject", "id"])


def _webhooks() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("api_key_id", sa.Text, nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", INSTANT),
        sa.Column("delivered_at", INSTANT),
        sa.Column("error", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_webhook_deliveries_job_id"),
    )
    op.create_index("ix_webhook_deliveries_next_at", "webhook_deliveries", ["next_at"])
