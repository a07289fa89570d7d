"""Results of a search are stored: those that are not there yet, with their kernels and the latencies they decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, ScalarSelect, bindparam, func, select

from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.records import MeasureResult, protocol_of
from tuner.schedule.space import MicroKernel
from tuner.storage.sql import latencies
from tuner.storage.sql._rows import AnyRow, insert_new
from tuner.storage.sql.identity import stored_task, symbols_text
from tuner.storage.sql.record_rows import columns_of
from tuner.storage.sql.schema import micro_kernels, tuning_records

_record = tuning_records.c
_NEWER = select(_record.id, _record.kernel_id, _record.instance, _record.attempt).where(
    _record.search_task_id == bindparam("task"), _record.id > bindparam("newest")
)


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
        "protocol": protocol_of(Cache(task.cache)),
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
