"""The tables. What is queried is a column with an index; what is only carried is JSON.

Alembic's scripts in ``migrations`` make these tables; a test holds the two together.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    and_,
    false,
)
from sqlalchemy.types import Double

from tuner.storage.sql.columns import BigInt, Instant, Json, SafeText, now

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
    Column("workload", Json(dict), nullable=False),
    # What workloads that differ in their extents alone have in common (identity.program_key).
    Column("program_key", SafeText, nullable=False, server_default="", index=True),
    Column("created_at", Instant, nullable=False, default=now()),
)

targets = Table(
    "targets",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("fingerprint", SafeText, nullable=False, unique=True),
    Column("target", Json(dict), nullable=False),
    # The reference speed: what the anchor took at the first successful reading that has one. Written once.
    Column("anchor_s", Double),
    Column("created_at", Instant, nullable=False, default=now()),
)

devices = Table(
    "devices",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("key", SafeText, nullable=False, index=True),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("state", SafeText, nullable=False),
    # Failures in a row, the last one's reason, and the end of a quarantine; one without an end needs a release.
    Column("failures", Integer, nullable=False, default=0, server_default="0"),
    Column("reason", SafeText, nullable=False, default="", server_default=""),
    Column("quarantined_until", Instant),
    Column("speed", Json(dict, optional=True)),
    # A list, the newest last: one for each target and number of threads.
    Column("calibrations", Json(list, optional=True)),
    # How it last joined: the token's id, and the process that did (tuner.device_auth).
    Column("token_id", SafeText),
    Column("server", SafeText),
    Column("description", Json(dict), nullable=False),
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
    Column("spec", Json(dict), nullable=False),
    Column("summary", Json(dict), nullable=False),
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
    # Higher ones are leased first, whoever owns them.
    Column("priority", Integer, nullable=False, server_default="0"),
    # Attempts that failed in a row, the trials that there were at the last of them, and when the next may begin.
    Column("failed_attempts", Integer, nullable=False, server_default="0"),
    Column("trials_at_failure", BigInt, nullable=False, server_default="0"),
    Column("not_before", Instant),
    # What the job may use at most, null without a limit: counted against quotas.
    Column("budget_trials", BigInt),
    Column("budget_seconds", Double),
    # Whom to notify when the job has ended: {"url", "key"}, the key being the one whose secret signs.
    Column("webhook", Json(dict, optional=True, none_as_null=True)),
    # Each between two commas, so that one is found as text: ",nightly,bert,".
    Column("tags", SafeText, nullable=False, server_default=""),
    Column("note", SafeText, nullable=False, server_default=""),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "state", "number"),
    # The queue: every column that a choice reads, so that it reads no rows.
    Index(None, "state", "device", "priority", "owner", "number", "not_before"),
    Index(None, "owner", "started_at"),
    Index(None, "owner", "ended_at"),
)

saved_filters = Table(
    "saved_filters",
    metadata,
    Column("number", BigInt, primary_key=True),
    Column("owner", SafeText, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("query", SafeText, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    UniqueConstraint("owner", "name"),
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
    Column("cache", SafeText, nullable=False, server_default="warm"),
    Column("task", Json(dict), nullable=False),
    Column("spent_s", Double, nullable=False, default=0.0),
    Column("done", Boolean, nullable=False, default=false()),
    Column("baselines", Json(dict, optional=True)),
    UniqueConstraint("job_id", "position"),
    Index(None, "workload_id", "target_id", "threads", "id"),
    Index(None, "workload_id", "target_id", "job_id"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("seq", BigInt, primary_key=True, autoincrement=False),
    Column("kind", SafeText, nullable=False),
    Column("data", Json(dict), nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
)

micro_kernels = Table(
    "micro_kernels",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("rule", SafeText, nullable=False),
    Column("rule_version", Integer, nullable=False),
    # An object whose keys stand in the order of the rule's axes: JSON keeps it, PostgreSQL's JSONB would not.
    Column("kernel", Json(dict), nullable=False),
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
    Column("samples_s", Json(list), nullable=False),
    Column("build_s", Double, nullable=False),
    Column("run_s", Double, nullable=False),
    # From the end of the trial on its device to when it was stored: with created_at and run_s, when it ran, by the
    # database's clock. Null in what earlier versions stored, and in what was imported.
    Column("stored_after_s", Double),
    Column("predicted_s", Double),
    Column("anchor_s", Double),
    Column("device", SafeText),
    Column("round", Integer, nullable=False),
    Column("phase", SafeText, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    # Of records that were imported: a digest of all that identifies them, and the job and the provenance that they
    # came with. Both are null for what was measured here.
    Column("uid", SafeText),
    Column("origin", Json(dict, optional=True, none_as_null=True)),
    UniqueConstraint("search_task_id", "kernel_id", "instance", "attempt"),
    Index(None, "search_task_id", "id"),
    Index(None, "workload_id", "target_id", "threads", "id"),
)
_measured = tuning_records.c.latency_s.is_not(None)
Index(
    "ix_tuning_records_readings",
    *(tuning_records.c[name] for name in ("workload_id", "target_id", "threads", "kernel_id", "instance")),
    sqlite_where=_measured,
    postgresql_where=_measured,
)
Index(
    "ix_tuning_records_rule",
    *(tuning_records.c[name] for name in ("target_id", "threads", "rule", "id")),
    sqlite_where=_measured,
    postgresql_where=_measured,
)
_imported = tuning_records.c.uid.is_not(None)
Index("ix_tuning_records_uid", tuning_records.c.uid, unique=True, sqlite_where=_imported, postgresql_where=_imported)
_failed = tuning_records.c.error_kind.is_not(None)
Index(
    "ix_tuning_records_failed",
    tuning_records.c.error_kind,
    tuning_records.c.created_at,
    sqlite_where=_failed,
    postgresql_where=_failed,
)

# What each device measured lately, with all that is summed up of it, so that no row is read. Not of imported records:
# those devices are others'.
_on_device = and_(tuning_records.c.device.is_not(None), tuning_records.c.search_task_id.is_not(None))
Index(
    "ix_tuning_records_device",
    *(
        tuning_records.c[name]
        for name in ("device", "created_at", "search_task_id", "run_s", "stored_after_s", "error_kind")
    ),
    sqlite_where=_on_device,
    postgresql_where=_on_device,
)

# What is known of a kernel at an instance, from all its readings: kept up to date in the transaction that stores them.
kernel_latencies = Table(
    "kernel_latencies",
    metadata,
    Column("workload_id", ForeignKey("workloads.id"), primary_key=True),
    Column("target_id", ForeignKey("targets.id"), primary_key=True),
    Column("threads", Integer, primary_key=True, autoincrement=False),
    Column("protocol", SafeText, primary_key=True),
    Column("instance", SafeText, primary_key=True),
    Column("kernel_id", ForeignKey("micro_kernels.id"), primary_key=True),
    Column("rule", SafeText, nullable=False),
    Column("rule_version", Integer, nullable=False),
    # The median at the target's reference speed, and the number of readings that it is of.
    Column("latency_s", Double, nullable=False),
    Column("readings", Integer, nullable=False),
    # The newest reading: whose job, which device.
    Column("record_id", BigInt, nullable=False),
)
Index(
    "ix_kernel_latencies_best",
    *(
        kernel_latencies.c[name]
        for name in ("workload_id", "target_id", "threads", "protocol", "instance", "latency_s")
    ),
)

# The instances of kernel_latencies, each once: a workload has hundreds of them and as many kernels at each.
measured_instances = Table(
    "measured_instances",
    metadata,
    Column("workload_id", ForeignKey("workloads.id"), primary_key=True),
    Column("target_id", ForeignKey("targets.id"), primary_key=True),
    Column("threads", Integer, primary_key=True, autoincrement=False),
    Column("protocol", SafeText, primary_key=True),
    Column("instance", SafeText, primary_key=True),
)

# Kernels that were found wrong, or that crashed, at any instance of a workload on a target.
disqualified_kernels = Table(
    "disqualified_kernels",
    metadata,
    Column("workload_id", ForeignKey("workloads.id"), primary_key=True),
    Column("target_id", ForeignKey("targets.id"), primary_key=True),
    Column("kernel_id", ForeignKey("micro_kernels.id"), primary_key=True),
    # The trial that showed it first. Not a reference: failed trials may be pruned, and the kernel stays disqualified.
    Column("record_id", BigInt, nullable=False),
)

# Kept by whatever adds or removes records (tuner/storage/sql/counts.py): counting them takes as long as reading them.
record_counts = Table(
    "record_counts",
    metadata,
    Column("workload_id", ForeignKey("workloads.id"), primary_key=True),
    Column("target_id", ForeignKey("targets.id"), primary_key=True),
    Column("records", BigInt, nullable=False),
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
    Column("manifest", Json(dict), nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    # {symbol: [low, high]}. Null where an earlier version's worker stored it: the search task has it then.
    Column("ranges", Json(dict, optional=True, none_as_null=True)),
    Column("protocol", SafeText),
    Column("cache", SafeText, nullable=False, server_default="warm"),
    # The library that is served in place of this one; null is served.
    Column("superseded_by", ForeignKey("artifacts.id"), index=True),
    Column("comparison", Json(dict, optional=True, none_as_null=True)),
    UniqueConstraint("search_task_id", "digest"),
    Index(None, "workload_id", "target_id", "id"),
)

library_kernels = Table(
    "library_kernels",
    metadata,
    Column("artifact_id", ForeignKey("artifacts.id"), primary_key=True),
    # No reference: a kernel that theory alone chose was never measured.
    Column("kernel_id", SafeText, primary_key=True),
)

library_aliases = Table(
    "library_aliases",
    metadata,
    Column("workload_id", ForeignKey("workloads.id"), primary_key=True),
    Column("target_id", ForeignKey("targets.id"), primary_key=True),
    Column("threads", Integer, primary_key=True, autoincrement=False),
    Column("cache", SafeText, primary_key=True, server_default="warm"),
    Column("name", SafeText, primary_key=True),
    Column("artifact_id", ForeignKey("artifacts.id"), nullable=False, index=True),
    Column("promoted_at", Instant, nullable=False, default=now()),
    Column("promoted_by", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    # How much better, in percent, a library must be to take the name by itself; null moves by hand alone.
    Column("at_least_percent", Double),
)

alias_history = Table(
    "alias_history",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("target_id", ForeignKey("targets.id"), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("cache", SafeText, nullable=False, server_default="warm"),
    Column("name", SafeText, nullable=False),
    Column("action", SafeText, nullable=False),
    # Null once that library was deleted.
    Column("artifact_id", ForeignKey("artifacts.id"), index=True),
    Column("previous_id", ForeignKey("artifacts.id"), index=True),
    Column("at", Instant, nullable=False, default=now()),
    Column("by", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Index(None, "workload_id", "target_id", "threads", "name", "id"),
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
    Column("dispatch", Json(dict), nullable=False),
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
    Column("scopes", Json(list), nullable=False, server_default='["read", "submit", "admin"]'),
    # Whose jobs this key submits; empty: its own id.
    Column("owner", SafeText, nullable=False, server_default=""),
    Column("expires_at", Instant),
    Column("last_used_at", Instant),
    Column("quota", Json(dict, optional=True, none_as_null=True)),
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

# Never deleted: a key that ever had one that is required stays closed to devices without.
device_tokens = Table(
    "device_tokens",
    metadata,
    Column("number", BigInt, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("key", SafeText, nullable=False),
    Column("note", SafeText, nullable=False),
    Column("stored_key", SafeText, nullable=False),
    Column("required", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    Column("expires_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    Column("last_used_at", Instant),
)

refused_devices = Table(
    "refused_devices",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("address", SafeText, primary_key=True),
    Column("key", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("first_at", Instant, nullable=False, default=now()),
    Column("seen_at", Instant, nullable=False, default=now(), index=True),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("at", Instant, nullable=False, default=now()),
    Column("actor", SafeText, nullable=False),
    Column("action", SafeText, nullable=False),
    Column("subject", SafeText, nullable=False),
    Column("detail", Json(dict), nullable=False),
    Index(None, "subject", "id"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("url", SafeText, nullable=False),
    Column("api_key_id", SafeText, nullable=False),
    Column("payload", Json(dict), nullable=False),
    Column("created_at", Instant, nullable=False, default=now()),
    Column("attempts", Integer, nullable=False, default=0),
    # When it is sent next; null once it was delivered or given up.
    Column("next_at", Instant, default=now(), index=True),
    Column("delivered_at", Instant),
    Column("error", SafeText, nullable=False, default=""),
)
