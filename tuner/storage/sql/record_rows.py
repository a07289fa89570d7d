"""Trials as rows of columns, and records back again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Text, cast, select

from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase, TuningRecord
from tuner.schedule.space import MicroKernel
from tuner.storage.errors import reading
from tuner.storage.sql._rows import AnyRow, readable
from tuner.storage.sql.columns import from_json
from tuner.storage.sql.identity import instance_of, shapes_of
from tuner.storage.sql.schema import micro_kernels, search_tasks, targets, tuning_records, workloads


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
        .join(micro_kernels, micro_kernels.c.id == tuning_records.c.kernel_id)
        .join(workloads, workloads.c.id == tuning_records.c.workload_id)
        .join(targets, targets.c.id == tuning_records.c.target_id)
        .outerjoin(search_tasks, search_tasks.c.id == tuning_records.c.search_task_id)
    )


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
