"""What is known of each kernel at each instance, kept up to date in the transaction that stores its trials.

The latency of a kernel at an instance is the median of its readings (``settled_latency_s``) by every job of the
workload, on one target, with one number of threads, under one protocol, all at the target's reference speed. What a
record says never changes, so only pairs with new readings are computed again, and only those with earlier ones are
read for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.program.workload import JsonObject
from tuner.records import DISQUALIFYING, PROTOCOL, Phase, settled_latency_s, speed_correction
from tuner.rules.space import MicroKernel
from tuner.storage.sql._rows import AnyRow, insert_new
from tuner.storage.sql.schema import disqualified_kernels, kernel_latencies, targets, tuning_records, workloads

MEASURED = "measured"
"""The provenance of a record of this database's own devices; others decide nothing until they are measured here."""

Pair = tuple[str, str]
"""A kernel's id and an instance."""

_record, _known = tuning_records.c, kernel_latencies.c
_LOCK = select(workloads.c.id).where(workloads.c.id == bindparam("workload")).with_for_update(key_share=True)
_REFERENCE = select(targets.c.anchor_s).where(targets.c.id == bindparam("target"))
_SET_REFERENCE = (
    update(targets)
    .where(targets.c.id == bindparam("on_target"), targets.c.anchor_s.is_(None))
    .values(anchor_s=bindparam("seconds"))
)
_EARLIER = select(_known.kernel_id, _known.instance).where(
    _known.workload_id == bindparam("workload"),
    _known.target_id == bindparam("target"),
    _known.threads == bindparam("threads"),
    _known.protocol == PROTOCOL,
    _known.instance.in_(bindparam("instances", expanding=True)),
    _known.kernel_id.in_(bindparam("kernels", expanding=True)),
)
_READINGS = select(
    _record.id, _record.kernel_id, _record.instance, _record.latency_s, _record.anchor_s, _record.phase
).where(
    _record.workload_id == bindparam("workload"),
    _record.target_id == bindparam("target"),
    _record.threads == bindparam("threads"),
    _record.protocol == PROTOCOL,
    _record.provenance == MEASURED,
    _record.latency_s.is_not(None),
    _record.kernel_id.in_(bindparam("kernels", expanding=True)),
    _record.instance.in_(bindparam("instances", expanding=True)),
)


def _upsert(make: Any) -> Insert:
    statement = make(kernel_latencies)
    changed = {name: statement.excluded[name] for name in ("latency_s", "readings", "record_id")}
    upsert: Insert = statement.on_conflict_do_update(index_elements=kernel_latencies.primary_key.columns, set_=changed)
    return upsert


_UPSERT = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}


def lock(connection: Connection, task: AnyRow) -> None:
    """Let one transaction at a time add trials to the workload of a row of search_tasks, until this one ends.

    Two that read the earlier readings of a pair at once would each miss the other's. Taken after the job's lock and
    before any row that several workloads share.
    """
    # SQLite knows no row locks and needs none: its writers come one at a time.
    connection.execute(_LOCK, {"workload": task.workload_id})


def add_trials(
    connection: Connection, task: AnyRow, kernels: Mapping[str, MicroKernel], trials: Sequence[JsonObject]
) -> None:
    """Take in trials that were just stored: columns of tuning_records, in the order of their ids.

    ``kernels`` are theirs, by id. The caller holds ``lock``.
    """
    _disqualify(connection, task, trials)
    timed = [trial for trial in trials if trial["latency_s"] is not None]
    if timed:
        reference_s = _reference_speed(connection, task.target_id, timed)
        readings: dict[Pair, list[Any]] = {}
        for trial in timed:
            readings.setdefault((trial["kernel_id"], trial["instance"]), []).append(trial)
        readings |= _with_earlier(connection, task, readings)
        place = {name: getattr(task, name) for name in ("workload_id", "target_id", "threads")}
        rows = [{**place, **_settled(pair, kernels[pair[0]], readings[pair], reference_s)} for pair in sorted(readings)]
        connection.execute(_UPSERT[connection.dialect.name], rows)


def _disqualify(connection: Connection, task: AnyRow, trials: Sequence[JsonObject]) -> None:
    first: dict[str, int] = {}
    for trial in trials:
        if trial["error_kind"] in DISQUALIFYING:
            first.setdefault(trial["kernel_id"], trial["id"])
    place = {"workload_id": task.workload_id, "target_id": task.target_id}
    rows = [{**place, "kernel_id": kernel_id, "record_id": first[kernel_id]} for kernel_id in sorted(first)]
    insert_new(connection, disqualified_kernels, rows)


def _reference_speed(connection: Connection, target_id: int, timed: Sequence[JsonObject]) -> float | None:
    """The target's reference speed in seconds of the anchor, set by the first of ``timed`` if it has none."""
    known: float | None = connection.scalar(_REFERENCE, {"target": target_id})
    first = next((trial["anchor_s"] for trial in timed if trial["anchor_s"]), None)
    if known is not None or first is None:
        return known
    connection.execute(_SET_REFERENCE, {"on_target": target_id, "seconds": first})
    # Another transaction may have been first.
    return connection.scalar(_REFERENCE, {"target": target_id})


def _with_earlier(
    connection: Connection, task: AnyRow, readings: Mapping[Pair, Sequence[Any]]
) -> dict[Pair, list[JsonObject]]:
    """Every reading, by pair, of those of the pairs that had some before."""
    place = {"workload": task.workload_id, "target": task.target_id, "threads": task.threads}
    names = {"kernels": sorted({kernel for kernel, _ in readings}), "instances": sorted({name for _, name in readings})}
    earlier = {(row.kernel_id, row.instance) for row in connection.execute(_EARLIER, place | names)} & readings.keys()
    result: dict[Pair, list[JsonObject]] = {pair: [] for pair in earlier}
    if earlier:
        names = {"kernels": sorted({kernel for kernel, _ in earlier}), "instances": sorted({at for _, at in earlier})}
        for row in connection.execute(_READINGS, place | names).mappings():
            if (pair := (row["kernel_id"], row["instance"])) in earlier:
                result[pair].append(dict(row))
    return result


def _settled(pair: Pair, kernel: MicroKernel, readings: Sequence[JsonObject], reference_s: float | None) -> JsonObject:
    """The columns of a pair that its readings decide."""
    at_one_speed = [
        (reading["latency_s"] * speed_correction(reading["anchor_s"], reference_s), reading["phase"] == Phase.FINAL)
        for reading in readings
    ]
    latency_s, count = settled_latency_s(at_one_speed)
    return {
        "protocol": PROTOCOL,
        "kernel_id": pair[0],
        "instance": pair[1],
        "rule": kernel.rule,
        "rule_version": kernel.rule_version,
        "latency_s": latency_s,
        "readings": count,
        "record_id": max(reading["id"] for reading in readings),
    }
