"""What the best kernel of a shape is decided by: latencies of kernels, and those that are disqualified.

Both follow from the records, which are read in order and never held: a group of readings at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
BATCH = 2_000
"""Rows that are written in one statement, and read at a time."""
MAX_DRIFT = 2.0
MEASURED = sa.text("latency_s IS NOT NULL")
CONDEMNING = ("wrong", "crash")
MACHINE = ("No space left on device", "Cannot allocate memory", "MemoryError")
"""In the message of a failure: the machine failed. Releases before had no kind for that."""

PLACE = ("workload_id", "target_id", "threads", "protocol", "instance", "kernel_id")
workloads = sa.table("workloads", sa.column("id"), sa.column("workload", sa.JSON), sa.column("program_key"))
targets = sa.table("targets", sa.column("id"), sa.column("anchor_s"))
kernels = sa.table("micro_kernels", *map(sa.column, ("id", "rule", "rule_version")))
records = sa.table(
    "tuning_records",
    *map(sa.column, ("id", *PLACE, "latency_s", "anchor_s", "phase", "error_kind", "error", "provenance")),
)
latencies = sa.table(
    "kernel_latencies", *map(sa.column, (*PLACE, "rule", "rule_version", "latency_s", "readings", "record_id"))
)
disqualified = sa.table("disqualified_kernels", *map(sa.column, ("workload_id", "target_id", "kernel_id", "record_id")))


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        # A worker that still runs must not add a record behind the statement that reads them.
        connection.execute(sa.text("LOCK TABLE tuning_records IN SHARE ROW EXCLUSIVE MODE"))
    _change_tables()
    _name_programs(connection)
    _set_reference_speeds(connection)
    _fill_disqualified(connection)
    rows = _settled(connection)
    while batch := list(itertools.islice(rows, BATCH)):
        connection.execute(sa.insert(latencies), batch)


def _change_tables() -> None:
    op.add_column("workloads", sa.Column("program_key", sa.Text, nullable=False, server_default=""))
    op.create_index("ix_workloads_program_key", "workloads", ["program_key"])
    op.add_column("targets", sa.Column("anchor_s", sa.Double))
    op.create_table(
        "kernel_latencies",
        *_place(("workload_id", "target_id")),
        sa.Column("threads", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("kernel_id", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("rule_version", sa.Integer, nullable=False),
        sa.Column("latency_s", sa.Double, nullable=False),
        sa.Column("readings", sa.Integer, nullable=False),
        sa.Column("record_id", BIG, nullable=False),
        sa.PrimaryKeyConstraint(*PLACE, name="pk_kernel_latencies"),
        *_references("kernel_latencies"),
    )
    op.create_index("ix_kernel_latencies_best", "kernel_latencies", [*PLACE[:-1], "latency_s"])
    op.create_table(
        "disqualified_kernels",
        *_place(("workload_id", "target_id")),
        sa.Column("kernel_id", sa.Text, nullable=False),
        sa.Column("record_id", BIG, nullable=False),
        sa.PrimaryKeyConstraint("workload_id", "target_id", "kernel_id", name="pk_disqualified_kernels"),
        *_references("disqualified_kernels"),
    )
    op.drop_index("ix_tuning_records_best", "tuning_records")
    columns = ["workload_id", "target_id", "threads", "kernel_id", "instance"]
    op.create_index(
        "ix_tuning_records_readings", "tuning_records", columns, sqlite_where=MEASURED, postgresql_where=MEASURED
    )
    op.drop_index("ix_search_tasks_workload_id_target_id", "search_tasks")
    columns = ["workload_id", "target_id", "threads", "id"]
    op.create_index("ix_search_tasks_workload_id_target_id_threads_id", "search_tasks", columns)


def _place(names: Sequence[str]) -> list[sa.Column[Any]]:
    return [sa.Column(name, BIG, nullable=False, autoincrement=False) for name in names]


def _references(table: str) -> list[sa.ForeignKeyConstraint]:
    columns = {"workload_id": "workloads.id", "target_id": "targets.id", "kernel_id": "micro_kernels.id"}
    return [sa.ForeignKeyConstraint([name], [other], name=f"fk_{table}_{name}") for name, other in columns.items()]


def _name_programs(connection: sa.Connection) -> None:
    """``program_key`` of every workload; frozen: what tuner.storage.sql.identity had when this revision was made."""
    query = sa.select(workloads.c.id, workloads.c.workload).order_by(workloads.c.id).limit(BATCH)
    update = sa.update(workloads).where(workloads.c.id == sa.bindparam("number"))
    rows = connection.execute(query).all()
    while rows:
        keys = [{"number": row.id, "key": _program_key(row.workload)} for row in rows]
        connection.execute(update.values(program_key=sa.bindparam("key")), keys)
        rows = connection.execute(query.where(workloads.c.id > rows[-1].id)).all()


def _program_key(workload: Mapping[str, Any]) -> str:
    same = {name: workload.get(name) for name in ("program", "outputs", "dtype", "constant")}
    text = json.dumps(same, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _set_reference_speeds(connection: sa.Connection) -> None:
    timed = sa.and_(records.c.latency_s.is_not(None), records.c.anchor_s > 0, records.c.provenance == "measured")
    first = sa.select(sa.func.min(records.c.id).label("id")).where(timed).group_by(records.c.target_id).subquery()
    query = sa.select(records.c.target_id, records.c.anchor_s).join(first, first.c.id == records.c.id)
    for row in connection.execute(query).all():
        connection.execute(sa.update(targets).where(targets.c.id == row.target_id).values(anchor_s=row.anchor_s))


def _fill_disqualified(connection: sa.Connection) -> None:
    place = [records.c[name] for name in ("workload_id", "target_id", "kernel_id")]
    of_kernel = sa.and_(records.c.error_kind.in_(CONDEMNING), records.c.provenance == "measured")
    of_machine = sa.or_(*(records.c.error.contains(text) for text in MACHINE))
    result = sa.select(*place, sa.func.min(records.c.id)).where(of_kernel, ~of_machine).group_by(*place)
    names = ["workload_id", "target_id", "kernel_id", "record_id"]
    connection.execute(sa.insert(disqualified).from_select(names, result))


def _settled(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    """The row of every kernel and instance that was measured."""
    place = [records.c[name] for name in PLACE]
    query = (
        sa.select(*place, records.c.id, records.c.latency_s, records.c.anchor_s, records.c.phase)
        .add_columns(targets.c.anchor_s.label("reference_s"), kernels.c.rule, kernels.c.rule_version)
        .join_from(records, targets, targets.c.id == records.c.target_id)
        .join(kernels, kernels.c.id == records.c.kernel_id)
        .where(records.c.latency_s.is_not(None), records.c.provenance == "measured")
        .order_by(*place, records.c.id)
    )
    rows = connection.execute(query, execution_options={"stream_results": True, "yield_per": BATCH})
    for _, group in itertools.groupby(rows, key=lambda row: tuple(row[: len(PLACE)])):
        readings = list(group)
        final = [_at_one_speed(row) for row in readings if row.phase == "final"]
        deciding = final or [_at_one_speed(row) for row in readings]
        last = readings[-1]
        named = dict(zip(PLACE, last[: len(PLACE)], strict=True))
        kernel = {"rule": last.rule, "rule_version": last.rule_version}
        figures = {"latency_s": statistics.median(deciding), "readings": len(deciding), "record_id": last.id}
        yield {**named, **kernel, **figures}


def _at_one_speed(row: Any) -> float:
    if not row.anchor_s or not row.reference_s:
        return float(row.latency_s)
    return float(row.latency_s * min(max(row.reference_s / row.anchor_s, 1 / MAX_DRIFT), MAX_DRIFT))
