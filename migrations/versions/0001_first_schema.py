"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
MEASURED = sa.text("latency_s IS NOT NULL")
TABLES = (
    "workloads",
    "targets",
    "devices",
    "jobs",
    "search_tasks",
    "job_events",
    "micro_kernels",
    "tuning_records",
    "artifacts",
    "artifact_files",
    "dispatchers",
    "api_keys",
)


def upgrade() -> None:
    _catalogue()
    _jobs()
    _jobs_parts()
    _micro_kernels()
    _records()
    _libraries()
    _keys()


def downgrade() -> None:
    for table in TABLES[::-1]:
        op.drop_table(table)


def _catalogue() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("workload", sa.JSON, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
        sa.UniqueConstraint("key", name="uq_workloads_key"),
    )
    op.create_table(
        "targets",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("target", sa.JSON, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
        sa.UniqueConstraint("fingerprint", name="uq_targets_fingerprint"),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("target_id", BIG, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("description", sa.JSON, nullable=False),
        sa.Column("registered_at", INSTANT, nullable=False),
        sa.Column("seen_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        _foreign("devices", "target_id", "targets.id"),
    )
    op.create_index("ix_devices_key", "devices", ["key"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", BIG, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("trials", BIG, nullable=False),
        sa.Column("event_seq", BIG, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_jobs_owner_idempotency_key"),
    )
    op.create_index("ix_jobs_state_number", "jobs", ["state", "number"])


def _jobs_parts() -> None:
    op.create_table(
        "search_tasks",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("workload_id", BIG, nullable=False),
        sa.Column("target_id", BIG, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("task", sa.JSON, nullable=False),
        sa.Column("spent_s", sa.Double, nullable=False),
        sa.Column("done", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_search_tasks"),
        sa.UniqueConstraint("job_id", "position", name="uq_search_tasks_job_id_position"),
        _foreign("search_tasks", "job_id", "jobs.id"),
        _foreign("search_tasks", "workload_id", "workloads.id"),
        _foreign("search_tasks", "target_id", "targets.id"),
    )
    op.create_index("ix_search_tasks_workload_id_target_id", "search_tasks", ["workload_id", "target_id"])
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("seq", BIG, nullable=False, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_job_events"),
        _foreign("job_events", "job_id", "jobs.id"),
    )


def _micro_kernels() -> None:
    op.create_table(
        "micro_kernels",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("rule_version", sa.Integer, nullable=False),
        sa.Column("kernel", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_micro_kernels"),
    )


def _records() -> None:
    op.create_table(
        "tuning_records",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("search_task_id", BIG),
        sa.Column("workload_id", BIG, nullable=False),
        sa.Column("target_id", BIG, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("kernel_id", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("latency_s", sa.Double),
        sa.Column("error_kind", sa.Text),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("samples_s", sa.JSON, nullable=False),
        sa.Column("build_s", sa.Double, nullable=False),
        sa.Column("run_s", sa.Double, nullable=False),
        sa.Column("predicted_s", sa.Double),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuning_records"),
        sa.UniqueConstraint(
            "search_task_id",
            "kernel_id",
            "instance",
            "attempt",
            name="uq_tuning_records_search_task_id_kernel_id_instance_attempt",
        ),
        _foreign("tuning_records", "search_task_id", "search_tasks.id"),
        _foreign("tuning_records", "workload_id", "workloads.id"),
        _foreign("tuning_records", "target_id", "targets.id"),
        _foreign("tuning_records", "kernel_id", "micro_kernels.id"),
    )
    _record_indexes()


def _record_indexes() -> None:
    place = ["workload_id", "target_id", "threads"]
    op.create_index("ix_tuning_records_search_task_id_id", "tuning_records", ["search_task_id", "id"])
    op.create_index("ix_tuning_records_workload_id_target_id_threads_id", "tuning_records", [*place, "id"])
    for name, columns in (
        ("ix_tuning_records_best", [*place, "instance", "latency_s"]),
        ("ix_tuning_records_rule", ["target_id", "threads", "rule", "id"]),
    ):
        op.create_index(name, "tuning_records", columns, sqlite_where=MEASURED, postgresql_where=MEASURED)


def _libraries() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("search_task_id", BIG, nullable=False),
        sa.Column("workload_id", BIG, nullable=False),
        sa.Column("target_id", BIG, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("manifest", sa.JSON, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("search_task_id", "digest", name="uq_artifacts_search_task_id_digest"),
        _foreign("artifacts", "search_task_id", "search_tasks.id"),
        _foreign("artifacts", "workload_id", "workloads.id"),
        _foreign("artifacts", "target_id", "targets.id"),
    )
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_index("ix_artifacts_workload_id_target_id_id", "artifacts", ["workload_id", "target_id", "id"])
    op.create_table(
        "artifact_files",
        sa.Column("artifact_id", BIG, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", "name", name="pk_artifact_files"),
        _foreign("artifact_files", "artifact_id", "artifacts.id"),
    )
    op.create_table(
        "dispatchers",
        sa.Column("artifact_id", BIG, nullable=False, autoincrement=False),
        sa.Column("dispatch", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", name="pk_dispatchers"),
        _foreign("dispatchers", "artifact_id", "artifacts.id"),
    )


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("number", BIG, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("secret_sha256", sa.Text, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.PrimaryKeyConstraint("number", name="pk_api_keys"),
        sa.UniqueConstraint("id", name="uq_api_keys_id"),
        sa.UniqueConstraint("secret_sha256", name="uq_api_keys_secret_sha256"),
    )


def _foreign(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [to], name=f"fk_{table}_{column}")
