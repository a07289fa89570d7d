"""What is known of each kernel at each instance, kept up to date in the transaction that stores its trials.

The latency of a kernel at an instance is the median of its readings (``settled_latency_s``) by every job of the
workload, on one target, with one number of threads, under one protocol, all at the target's reference speed. What a
record says never changes, so only pairs with new readings are computed again, and only those with earlier ones are
read for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.library.choice import Medians
from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.records import DISQUALIFYING, Phase, protocol_of, settled_latency_s, speed_correction
from tuner.schedule.space import MicroKernel
from tuner.storage.sql._rows import AnyRow, insert_new
from tuner.storage.sql.schema import disqualified_kernels, kernel_latencies, measured_instances, targets, tuning_records

MEASURED = "measured"
"""The provenance of a record of this database's own devices; others decide nothing until they are measured here."""

Pair = tuple[str, str]
"""A kernel's id and an instance."""

_record, _known = tuning_records.c, kernel_latencies.c
_REFERENCE = select(targets.c.anchor_s).where(targets.c.id == bindparam("target"))
_SET_REFERENCE = (
    update(targets)
    .where(targets.c.id == bindparam("on_target"), targets.c.anchor_s.is_(None))
    .values(anchor_s=bindparam("seconds"))
)
_READINGS = select(
    _record.id, _record.kernel_id, _record.instance, _record.latency_s, _record.anchor_s, _record.phase
).where(
    _record.workload_id == bindparam("workload"),
    _record.target_id == bindparam("target"),
    _record.threads == bindparam("threads"),
    _record.protocol == bindparam("protocol"),
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


def add_trials(
    connection: Connection, task: AnyRow, kernels: Mapping[str, MicroKernel], trials: Sequence[JsonObject]
) -> None:
    """Take in trials that were just stored: columns of tuning_records, in the order of their ids.

    ``kernels`` are theirs, by id; ``task`` is the row of their search task with the ``anchor_s`` of its target, read
    with the workload locked.
    """
    _disqualify(connection, task, trials)
    timed = [trial for trial in trials if trial["latency_s"] is not None]
    if timed:
        reference_s = _reference_speed(connection, task, timed)
        readings: dict[Pair, list[JsonObject]] = {}
        for trial in timed:
            readings.setdefault((trial["kernel_id"], trial["instance"]), []).append(trial)
        settled = _settled(task, kernels, readings, reference_s)
        new = insert_new(connection, kernel_latencies, settled)
        if new:
            insert_new(connection, measured_instances, _instances(settled))
        # A search mostly measures pairs that are new.
        if new < len(settled):
            settled = _settled(task, kernels, _all_readings(connection, task, readings), reference_s)
            connection.execute(_UPSERT[connection.dialect.name], settled)


def _instances(latencies: Sequence[JsonObject]) -> list[JsonObject]:
    """Rows of measured_instances, sorted by instance, for rows of kernel_latencies."""
    columns = measured_instances.c.keys()
    named = {row["instance"]: {name: row[name] for name in columns} for row in latencies}
    return [named[instance] for instance in sorted(named)]


def _disqualify(connection: Connection, task: AnyRow, trials: Sequence[JsonObject]) -> None:
    first: dict[str, int] = {}
    for trial in trials:
        if trial["error_kind"] in DISQUALIFYING:
            first.setdefault(trial["kernel_id"], trial["id"])
    place = {"workload_id": task.workload_id, "target_id": task.target_id}
    rows = [{**place, "kernel_id": kernel_id, "record_id": first[kernel_id]} for kernel_id in sorted(first)]
    insert_new(connection, disqualified_kernels, rows)


def _reference_speed(connection: Connection, task: AnyRow, timed: Sequence[JsonObject]) -> float | None:
    """The target's reference speed, in seconds of the anchor: that of the first of ``timed`` if it has none yet."""
    known: float | None = task.anchor_s
    first = next((trial["anchor_s"] for trial in timed if trial["anchor_s"]), None)
    if known is not None or first is None:
        return known
    connection.execute(_SET_REFERENCE, {"on_target": task.target_id, "seconds": first})
    # Another transaction may have been first.
    return connection.scalar(_REFERENCE, {"target": task.target_id})


def _all_readings(connection: Connection, task: AnyRow, pairs: Collection[Pair]) -> dict[Pair, list[JsonObject]]:
    """Every stored reading of each pair."""
    asked = {"workload": task.workload_id, "target": task.target_id, "threads": task.threads}
    asked["protocol"] = protocol_of(Cache(task.cache))
    names = {"kernels": sorted({kernel for kernel, _ in pairs}), "instances": sorted({name for _, name in pairs})}
    result: dict[Pair, list[JsonObject]] = {pair: [] for pair in pairs}
    for row in connection.execute(_READINGS, asked | names).mappings():
        if (pair := (row["kernel_id"], row["instance"])) in result:
            result[pair].append(dict(row))
    return result


def _settled(
    task: AnyRow,
    kernels: Mapping[str, MicroKernel],
    readings: Mapping[Pair, Sequence[JsonObject]],
    reference_s: float | None,
) -> list[JsonObject]:
    """Rows of kernel_latencies, sorted by pair."""
    return [
        {
            "workload_id": task.workload_id,
            "target_id": task.target_id,
            "threads": task.threads,
            "protocol": protocol_of(Cache(task.cache)),
            "kernel_id": pair[0],
            "instance": pair[1],
            "rule": kernels[pair[0]].rule,
            "rule_version": kernels[pair[0]].rule_version,
            **_settled_columns(readings[pair], reference_s),
        }
        for pair in sorted(readings)
    ]


def _settled_columns(readings: Sequence[JsonObject], reference_s: float | None) -> JsonObject:
    """The columns of a pair that its readings decide."""
    at_one_speed = [
        (reading["latency_s"] * speed_correction(reading["anchor_s"], reference_s), reading["phase"] == Phase.FINAL)
        for reading in readings
    ]
    latency_s, count = settled_latency_s(at_one_speed)
    return {"latency_s": latency_s, "readings": count, "record_id": max(reading["id"] for reading in readings)}


_MEDIANS = select(_known.kernel_id, _known.instance, _known.latency_s).where(
    _known.workload_id == bindparam("workload_id"),
    _known.target_id == bindparam("target_id"),
    _known.threads == bindparam("threads"),
    _known.protocol == bindparam("protocol"),
    _known.instance.in_(bindparam("instances", expanding=True)),
    _known.kernel_id.in_(bindparam("kernels", expanding=True)),
)


def medians_of(
    connection: Connection,
    workload_id: int,
    target_id: int,
    threads: int,
    protocol: str,
    wanted: Collection[tuple[str, str]],
) -> Medians:
    """The medians of each (kernel id, instance in symbols) that is ``wanted`` and was measured."""
    if not wanted:
        return {}
    same = {"workload_id": workload_id, "target_id": target_id, "threads": threads, "protocol": protocol}
    kernels, instances = (sorted(set(names)) for names in zip(*wanted, strict=True))
    rows = connection.execute(_MEDIANS, {**same, "kernels": kernels, "instances": instances})
    return {(row.kernel_id, row.instance): row.latency_s for row in rows}
