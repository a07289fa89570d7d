"""The tables. What is queried is a column with an index; what is only carried is JSON.

Alembic's scripts in ``migrations`` make these tables; a test holds the two together.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    false,
)
from sqlalchemy.types import Double

from tuner.storage.sql.columns import BigInt, Instant, SafeText, now

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

workloads = Table(
    "workloads",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("key", SafeText, nullable=False, unique=True),
    Column("workload", JSON, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
)

targets = Table(
    "targets",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("fingerprint", SafeText, nullable=False, unique=True),
    Column("target", JSON, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
)

devices = Table(
    "devices",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("key", SafeText, nullable=False, index=True),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("state", SafeText, nullable=False),
    Column("description", JSON, nullable=False),
    Column("registered_at", Instant, nullable=False, default=now()),
    Column("seen_at", Instant, nullable=False, default=now()),
)

jobs = Table(
    "jobs",
    metadata,
    # The order of submission, and of the queue; ids are what the world sees.
    Column("number", BigInt, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("name", SafeText, nullable=False),
    Column("owner", SafeText, nullable=False),
    Column("idempotency_key", SafeText),
    Column("state", SafeText, nullable=False),
    Column("device", SafeText, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("error", SafeText, nullable=False, default=""),
    Column("created_at", Instant, nullable=False, default=now()),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("epoch", BigInt, nullable=False, default=0),
    Column("worker", SafeText),
    Column("lease_expires_at", Instant),
    Column("trials", BigInt, nullable=False, default=0),
    # The seq of the job's newest event. Taken under the row's lock, so seq has no gaps and follows the commits.
    Column("event_seq", BigInt, nullable=False, default=0),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "state", "number"),
)

search_tasks = Table(
    "search_tasks",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("count", Integer, nullable=False),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("task", JSON, nullable=False),
    Column("spent_s", Double, nullable=False, default=0.0),
    Column("done", Boolean, nullable=False, default=false()),
    Column("baselines", JSON),
    UniqueConstraint("job_id", "position"),
    Index(None, "workload_id", "target_id"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("seq", BigInt, primary_key=True, autoincrement=False),
    Column("kind", SafeText, nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
)

micro_kernels = Table(
    "micro_kernels",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("rule", SafeText, nullable=False),
    Column("rule_version", Integer, nullable=False),
    # An object whose keys stand in the order of the rule's axes: JSON keeps it, PostgreSQL's JSONB would not.
    Column("kernel", JSON, nullable=False),
)

tuning_records = Table(
    "tuning_records",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("search_task_id", ForeignKey("search_tasks.id")),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("rule", SafeText, nullable=False),
    Column("kernel_id", ForeignKey("micro_kernels.id"), nullable=False),
    Column("instance", SafeText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("protocol", SafeText, nullable=False),
    Column("provenance", SafeText, nullable=False),
    Column("latency_s", Double),
    Column("error_kind", SafeText),
    Column("error", SafeText, nullable=False),
    Column("weight", Double, nullable=False),
    Column("samples_s", JSON, nullable=False),
    Column("build_s", Double, nullable=False),
    Column("run_s", Double, nullable=False),
    Column("predicted_s", Double),
    Column("anchor_s", Double),
    Column("device", SafeText),
    Column("round", Integer, nullable=False),
    Column("phase", SafeText, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    UniqueConstraint("search_task_id", "kernel_id", "instance", "attempt"),
    Index(None, "search_task_id", "id"),
    Index(None, "workload_id", "target_id", "threads", "id"),
)
_measured = tuning_records.c.latency_s.is_not(None)
Index(
    "ix_tuning_records_best",
    *(tuning_records.c[name] for name in ("workload_id", "target_id", "threads", "instance", "latency_s")),
    sqlite_where=_measured,
    postgresql_where=_measured,
)
Index(
    "ix_tuning_records_rule",
    *(tuning_records.c[name] for name in ("target_id", "threads", "rule", "id")),
    sqlite_where=_measured,
    postgresql_where=_measured,
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("digest", SafeText, nullable=False, index=True),
    Column("search_task_id", ForeignKey("search_tasks.id"), nullable=False),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    UniqueConstraint("search_task_id", "digest"),
    Index(None, "workload_id", "target_id", "id"),
)

artifact_files = Table(
    "artifact_files",
    metadata,
    Column("artifact_id", ForeignKey("artifacts.id"), primary_key=True),
    Column("name", SafeText, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

dispatchers = Table(
    "dispatchers",
    metadata,
    Column("artifact_id", ForeignKey("artifacts.id"), primary_key=True),
    Column("dispatch", JSON, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("number", BigInt, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("name", SafeText, nullable=False),
    # SHA-256 of a secret of 256 random bits: nothing to guess, so no salt and no slow hash.
    Column("secret_sha256", SafeText, nullable=False, unique=True),
    Column("created_at", Instant, nullable=False, default=now()),
    Column("revoked_at", Instant),
)

login_tokens = Table(
    "login_tokens",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("secret_sha256", SafeText, nullable=False, unique=True),
    # The name of the key that it is exchanged for.
    Column("name", SafeText, nullable=False),
    # That key, once the token was used.
    Column("api_key_id", ForeignKey("api_keys.id"), index=True),
    Column("created_at", Instant, nullable=False, default=now()),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
)
