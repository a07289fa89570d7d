"""What lookups read: the best kernel at an instance, the libraries of a scope, instances near by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, Text, bindparam, cast, select

from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject
from tuner.records import PROTOCOL
from tuner.rules.space import MicroKernel
from tuner.storage.libraries import Comparison
from tuner.storage.lookups import BuiltLibrary, KernelLatency, Known, LookupScope, NamedTask, WorkloadForm
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.asked import Asking
from tuner.storage.sql.identity import split_label, stored_task
from tuner.storage.sql.lookup_statements import BEST, INSTANCES, LATENCIES, LIBRARIES, NEWEST_TASKS
from tuner.storage.sql.schema import dispatchers, micro_kernels, search_tasks, workloads

_TASKS = select(search_tasks.c.id, cast(search_tasks.c.task, Text).label("task")).where(
    search_tasks.c.id.in_(bindparam("numbers", expanding=True))
)
_TABLES = select(dispatchers.c.artifact_id, dispatchers.c.dispatch).where(
    dispatchers.c.artifact_id.in_(bindparam("numbers", expanding=True))
)
_KERNELS = select(micro_kernels.c.id, micro_kernels.c.kernel).where(
    micro_kernels.c.id.in_(bindparam("ids", expanding=True))
)
_FORMS = select(workloads.c.key, workloads.c.workload).where(workloads.c.key.in_(bindparam("keys", expanding=True)))
_LIKE = (
    select(workloads.c.key, workloads.c.workload)
    .where(workloads.c.program_key == bindparam("program"))
    .order_by(workloads.c.id.desc())
    .limit(bindparam("most"))
)


class Lookups(Part):
    def look_up(self, asked: Sequence[tuple[LookupScope, str]]) -> tuple[Known, ...]:
        if not asked:
            return ()
        questions = [(*_scope(scope), instance) for scope, instance in asked]
        libraries: dict[int, list[BuiltLibrary]] = {}
        with self._database.read() as connection:
            best = {row.n: _latency_of(row) for row in BEST.rows(connection, questions)}
            for row in LIBRARIES.rows(connection, questions):
                libraries.setdefault(row.n, []).append(_library_of(row))
        return tuple(Known(best.get(n), tuple(libraries.get(n, ()))) for n in range(len(asked)))

    def latencies(self, asked: Sequence[tuple[LookupScope, str, str]]) -> tuple[KernelLatency | None, ...]:
        questions = [(*_scope(scope), instance, kernel) for scope, instance, kernel in asked]
        result = {row.n: _latency_of(row) for row in self._rows(LATENCIES, questions)}
        return tuple(result.get(n) for n in range(len(asked)))

    def measured_instances(self, scopes: Sequence[LookupScope]) -> tuple[tuple[str, ...], ...]:
        result: list[list[str]] = [[] for _ in scopes]
        for row in self._rows(INSTANCES, list(map(_scope, scopes))):
            result[row.n].append(row.instance)
        return tuple(map(tuple, result))

    def newest_tasks(self, scopes: Sequence[LookupScope]) -> tuple[NamedTask | None, ...]:
        rows = self._rows(NEWEST_TASKS, list(map(_scope, scopes)))
        result = {row.n: NamedTask(row.id, row.fingerprint) for row in rows}
        return tuple(result.get(n) for n in range(len(scopes)))

    def tasks(self, numbers: Sequence[int]) -> Mapping[int, SearchTask]:
        return {row.id: stored_task(row.task) for row in self._by(_TASKS, numbers=numbers)}

    def dispatch_tables(self, numbers: Sequence[int]) -> Mapping[int, JsonObject]:
        return {row.artifact_id: row.dispatch for row in self._by(_TABLES, numbers=numbers)}

    def kernels(self, ids: Sequence[str]) -> Mapping[str, MicroKernel]:
        return {row.id: MicroKernel.from_json(row.kernel) for row in self._by(_KERNELS, ids=ids)}

    def workload_forms(self, keys: Sequence[str]) -> Mapping[str, WorkloadForm]:
        return {row.key: _form(row) for row in self._by(_FORMS, keys=keys)}

    def workloads_like(self, program: str, limit: int) -> tuple[WorkloadForm, ...]:
        with self._database.read() as connection:
            rows = connection.execute(_LIKE, {"program": program, "most": limit}).all()
        return tuple(_form(row) for row in rows)

    def _rows(self, asking: Asking, questions: Sequence[Sequence[str | int | None]]) -> Sequence[AnyRow]:
        if not questions:
            return ()
        with self._database.read() as connection:
            return asking.rows(connection, questions)

    def _by(self, query: Select[Any], **names: Sequence[str] | Sequence[int]) -> Sequence[AnyRow]:
        if not all(names.values()):
            return ()
        with self._database.read() as connection:
            return connection.execute(query, {name: list(values) for name, values in names.items()}).all()


def _scope(scope: LookupScope) -> tuple[str, str | None, int, str | None]:
    return (scope.workload_key, scope.target_fingerprint, scope.threads, scope.job_id)


def _latency_of(row: AnyRow) -> KernelLatency:
    return KernelLatency(row.kernel_id, row.instance, row.latency_s, row.readings, row.job_id)


def _library_of(row: AnyRow) -> BuiltLibrary:
    comparison = Comparison.from_json(json.loads(row.comparison)) if row.comparison else None
    return BuiltLibrary(row.id, row.digest, row.job_id, row.protocol == PROTOCOL, comparison)


def _form(row: Any) -> WorkloadForm:
    return WorkloadForm(row.key, split_label(row.workload)[0])
