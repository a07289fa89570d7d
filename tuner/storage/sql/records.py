"""Tuning records: trials as columns, and back again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Text, and_, bindparam, cast, func, select, union

from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target import Target
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, Phase, TuningRecord
from tuner.schedule.space import MicroKernel
from tuner.storage.errors import reading
from tuner.storage.sql import cursors, latencies
from tuner.storage.sql._rows import AnyRow, Part, insert_new, readable
from tuner.storage.sql.columns import from_json
from tuner.storage.sql.devices import target_of
from tuner.storage.sql.identity import instance_of, shapes_of, split_label, stored_task, symbols_text
from tuner.storage.sql.schema import (
    disqualified_kernels,
    kernel_latencies,
    micro_kernels,
    search_tasks,
    targets,
    tuning_records,
    workloads,
)
from tuner.storage.sql.trials import trial_page

FASTEST = 8
"""Kernels of each instance that a search starts from however old their readings are."""

_record = tuning_records.c
_NEWER = select(_record.id, _record.kernel_id, _record.instance, _record.attempt).where(
    _record.search_task_id == bindparam("task"), _record.id > bindparam("newest")
)


class Records(Part):
    def list_trials(
        self, job_id: str, after: int = 0, limit: int = 1000, search_task_id: int | None = None
    ) -> tuple[TuningRecord, ...]:
        """Records of a job with ``seq`` (the row's number) above ``after``, in order. Raises NotFound."""
        with self._database.read() as connection:
            page = trial_page(connection, job_id, after, limit, search_task_id)
            if page is None:
                return ()
            within = (_record.search_task_id.in_(page.tasks), _record.id > page.after, _record.id <= page.last)
            return of_jobs(connection, select_records().where(*within).order_by(_record.id))

    def records_of_task(self, search_task_id: int) -> tuple[TuningRecord, ...]:
        """Everything a policy needs to be rebuilt, in the order it was stored.

        Instances are in the task's shape variables; one that is none of the task's is in the workload's symbols.
        """
        query = select_records().where(_record.search_task_id == search_task_id).order_by(_record.id)
        with self._database.read() as connection:
            return of_jobs(connection, query)

    def prior_records(
        self, workload_key: str, target_fingerprint: str, threads: int, limit: int = 20_000
    ) -> tuple[TuningRecord, ...]:
        """What a search of the workload starts from, in the order stored: the newest ``limit`` of its records, and of
        older ones those that a kernel is known to be wrong by, and the newest readings of the fastest kernels."""
        same = (_on(target_fingerprint, threads), _of(workload_key))
        newest = select(_record.id).where(*same).order_by(_record.id.desc()).limit(cursors.checked(limit)).subquery()
        place = (workload_key, target_fingerprint)
        ids = union(select(newest.c.id), _disqualifying(*place), _fastest(*place, threads)).subquery()
        return self._all(select_records().join(ids, ids.c.id == _record.id).order_by(_record.id))

    def records_of_target(
        self, target_fingerprint: str, threads: int, rule: str, limit: int = 20_000
    ) -> tuple[tuple[JsonObject, TuningRecord], ...]:
        """The newest successful records of a rule on a target, each with its workload in canonical form, whose shape
        variables are the symbols that the record gives: a model starts from them."""
        same = and_(_on(target_fingerprint, threads), _record.rule == rule, _decides())
        query = select_records().where(same).order_by(_record.id.desc()).limit(cursors.checked(limit))
        with self._database.read() as connection:
            rows = records_of(connection.execute(query).all())
            keys = sorted({record.workload_key for record in rows})
            known = select(workloads.c.key, workloads.c.workload).where(workloads.c.key.in_(keys))
            by_key = {row.key: split_label(row.workload)[0] for row in connection.execute(known)}
        return tuple((by_key[record.workload_key], record) for record in rows)

    def list_targets(self) -> tuple[Target, ...]:
        """Every target that a device or a search task has had, in the order in which they came."""
        with self._database.read() as connection:
            rows = connection.execute(select(targets.c.id, targets.c.target).order_by(targets.c.id)).all()
        return tuple(readable("target", target_of, rows))

    def _all(self, query: Select[Any]) -> tuple[TuningRecord, ...]:
        with self._database.read() as connection:
            return records_of(connection.execute(query).all())


def insert_results(connection: Connection, task: AnyRow, results: Sequence[MeasureResult]) -> int:
    """Store the results of a search task that are not there yet; how many those were.

    ``task`` is its row, with its JSON as ``text`` and its ``newest_record``, while the job and the workload are locked:
    nobody else adds records to it.
    """
    if not results:
        return 0
    kernels = insert_kernels(connection, [result.kernel for result in results])
    shared = {
        "search_task_id": task.id,
        "workload_id": task.workload_id,
        "target_id": task.target_id,
        "threads": task.threads,
        "protocol": PROTOCOL,
        "provenance": latencies.MEASURED,
    }
    asked = stored_task(task.text)
    named = {instance: symbols_text(asked, instance) for instance in {result.instance for result in results}}
    trials = [
        {**shared, **columns_of(result), "instance": named[result.instance], "kernel_id": kernels[result.kernel]}
        for result in results
    ]
    if not insert_new(connection, tuning_records, trials):
        return 0
    stored = _newer(connection, task, trials)
    latencies.add_trials(connection, task, {kernels[k]: k for k in kernels}, stored)
    return len(stored)


def newest_record(search_task_id: ColumnElement[int]) -> ScalarSelect[int]:
    """The id of the newest record of a search task; 0 if it has none."""
    return (
        select(func.coalesce(func.max(_record.id), 0)).where(_record.search_task_id == search_task_id).scalar_subquery()
    )


def _newer(connection: Connection, task: AnyRow, trials: Sequence[JsonObject]) -> list[JsonObject]:
    """The trials that were stored since ``task`` was read, each with the ``id`` of its row, in their order."""
    # Asked for afterwards: an INSERT with RETURNING is a statement of its own for each number of rows, which takes
    # longer to compose and to parse than all else.
    rows = connection.execute(_NEWER, {"task": task.id, "newest": task.newest_record}).all()
    named = {(trial["kernel_id"], trial["instance"], trial["attempt"]): trial for trial in reversed(trials)}
    return [
        {**named[row.kernel_id, row.instance, row.attempt], "id": row.id}
        for row in sorted(rows, key=lambda row: row.id)
    ]


def insert_kernels(connection: Connection, kernels: Iterable[MicroKernel]) -> dict[MicroKernel, str]:
    """Store the kernels that are not there yet; the id of each."""
    ids = {kernel: kernel.id for kernel in set(kernels)}
    rows = [
        {"id": kernel_id, "rule": kernel.rule, "rule_version": kernel.rule_version, "kernel": kernel.to_json()}
        for kernel, kernel_id in sorted(ids.items(), key=lambda item: item[1])
    ]
    insert_new(connection, micro_kernels, rows)
    return ids


def columns_of(result: MeasureResult) -> JsonObject:
    latency_s, error_kind, error = result.latency_s, result.error_kind, result.error
    if latency_s is not None and not math.isfinite(latency_s):
        # Such a "latency" would sort before or after every other, and JSON cannot carry it.
        error = error or f"measured a latency of {latency_s} s"
        latency_s, error_kind = None, error_kind or ErrorKind.DEVICE
    return {
        "rule": result.kernel.rule,
        "attempt": result.attempt,
        "latency_s": latency_s,
        "error_kind": error_kind.value if error_kind else None,
        "error": error,
        "weight": result.instance.weight,
        "samples_s": [sample for sample in result.samples_s if math.isfinite(sample)],
        "build_s": _finite(result.build_s) or 0.0,
        "run_s": _finite(result.run_s) or 0.0,
        # Read here, not when the trial was handed over: a batch may have waited for the database.
        "stored_after_s": None if result.ended_s is None else max(0.0, time.monotonic() - result.ended_s),
        "predicted_s": _finite(result.predicted_s),
        "anchor_s": _finite(result.anchor_s),
        "device": result.device,
        "round": result.round,
        "phase": result.phase.value,
    }


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def select_records() -> Select[Any]:
    return (
        select(
            tuning_records,
            # As text, to be parsed once for all trials of a kernel.
            cast(micro_kernels.c.kernel, Text).label("kernel"),
            workloads.c.key.label("workload_key"),
            targets.c.fingerprint,
            search_tasks.c.job_id,
        )
        .join(micro_kernels, micro_kernels.c.id == _record.kernel_id)
        .join(workloads, workloads.c.id == _record.workload_id)
        .join(targets, targets.c.id == _record.target_id)
        .outerjoin(search_tasks, search_tasks.c.id == _record.search_task_id)
    )


def _disqualifying(workload_key: str, target_fingerprint: str) -> Select[Any]:
    """The ids of records by which kernels are disqualified, on any number of threads."""
    bad = disqualified_kernels.c
    return select(bad.record_id).where(
        bad.workload_id == _workload_id(workload_key), bad.target_id == _target_id(target_fingerprint)
    )


def _fastest(workload_key: str, target_fingerprint: str, threads: int) -> Select[Any]:
    """The ids of the newest readings of the FASTEST kernels at each instance."""
    known = kernel_latencies.c
    rank = func.row_number().over(partition_by=known.instance, order_by=known.latency_s).label("rank")
    ranked = (
        select(known.record_id, rank)
        .where(known.workload_id == _workload_id(workload_key), known.target_id == _target_id(target_fingerprint))
        .where(known.threads == threads, known.protocol == PROTOCOL)
        .subquery()
    )
    return select(ranked.c.record_id).where(ranked.c.rank <= FASTEST)


def _on(target_fingerprint: str, threads: int) -> ColumnElement[bool]:
    """Records that may be compared with each other: one target, as many threads, the protocol of this version."""
    target_id = _target_id(target_fingerprint)
    return and_(_record.target_id == target_id, _record.threads == threads, _record.protocol == PROTOCOL)


def _of(workload_key: str) -> ColumnElement[bool]:
    return _record.workload_id == _workload_id(workload_key)


# Numbers looked up beforehand, not conditions on joined tables: the indexes begin with them.
def _workload_id(key: str) -> ScalarSelect[int]:
    return select(workloads.c.id).where(workloads.c.key == key).scalar_subquery()


def _target_id(fingerprint: str) -> ScalarSelect[int]:
    return select(targets.c.id).where(targets.c.fingerprint == fingerprint).scalar_subquery()


def _decides() -> ColumnElement[bool]:
    return and_(_record.latency_s.is_not(None), _record.provenance == latencies.MEASURED)


def of_jobs(connection: Connection, query: Select[Any]) -> tuple[TuningRecord, ...]:
    """Records with their instances in the shape variables of the jobs that they are of."""
    rows = connection.execute(query).all()
    tasks = {row.search_task_id for row in rows}
    texts = select(search_tasks.c.id, cast(search_tasks.c.task, Text).label("text")).where(search_tasks.c.id.in_(tasks))
    return records_of(rows, shapes_of(connection.execute(texts)))


def records_of(
    rows: Sequence[AnyRow], shapes: Mapping[int, Mapping[str, Mapping[str, int]]] | None = None
) -> tuple[TuningRecord, ...]:
    """``shapes``: by search task, how records name its instances -> these in the job's variables."""
    # Many trials share a kernel or an instance: each is built once.
    kernels: dict[str, MicroKernel] = {}
    instances: dict[tuple[int | None, str, float], WorkloadInstance] = {}

    def record(row: AnyRow) -> TuningRecord:
        if (kernel := kernels.get(row.kernel_id)) is None:
            kernel = kernels[row.kernel_id] = _kernel_of(row)
        named = (row.search_task_id if shapes else None, row.instance, row.weight)
        if (instance := instances.get(named)) is None:
            known = (shapes or {}).get(row.search_task_id, {})
            instance = instances[named] = instance_of(row.instance, row.weight, known)
        return record_of(row, kernel, instance)

    return tuple(readable("record", record, rows))


def _kernel_of(row: AnyRow) -> MicroKernel:
    with reading(f"kernel {row.kernel_id}"):
        return MicroKernel.from_json(from_json(row.kernel))


def record_of(row: AnyRow, kernel: MicroKernel, instance: WorkloadInstance) -> TuningRecord:
    """Raises CorruptData."""
    with reading(f"the samples of record {row.id}", row.samples_s):
        samples_s = tuple(map(float, row.samples_s))
    result = MeasureResult(
        kernel=kernel,
        instance=instance,
        latency_s=row.latency_s,
        samples_s=samples_s,
        error_kind=ErrorKind(row.error_kind) if row.error_kind else None,
        error=row.error,
        build_s=row.build_s,
        run_s=row.run_s,
        predicted_s=row.predicted_s,
        round=row.round,
        phase=Phase(row.phase),
        attempt=row.attempt,
        anchor_s=row.anchor_s,
        device=row.device,
    )
    return TuningRecord(
        workload_key=row.workload_key,
        target_fingerprint=row.fingerprint,
        threads=row.threads,
        protocol=row.protocol,
        result=result,
        seq=row.id,
        job_id=row.job_id,
        search_task_id=row.search_task_id,
        created_at=row.created_at,
        provenance=row.provenance,
    )
