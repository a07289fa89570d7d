"""What lookups read: the best kernel at an instance, the libraries of a scope, instances near by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import bindparam, select

from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.records import PROTOCOLS, protocol_of
from tuner.schedule.space import MicroKernel
from tuner.storage.errors import Unreadable, reading
from tuner.storage.libraries import Comparison
from tuner.storage.lookups import BuiltLibrary, KernelLatency, Known, LookupScope, NamedTask, WorkloadForm
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.columns import from_json
from tuner.storage.sql.identity import split_label, stored_task
from tuner.storage.sql.lookup_statements import (
    BEST,
    FORMS,
    INSTANCES,
    KERNELS,
    LATENCIES,
    LIBRARIES,
    NEWEST_TASKS,
    NEWEST_TASKS_OF_ANY,
    TABLES,
    TASKS,
)
from tuner.storage.sql.schema import workloads
from tuner.storage.sql.values_table import Asking

_LIKE = (
    select(workloads.c.key, workloads.c.workload)
    .where(workloads.c.program_key == bindparam("program"))
    .order_by(workloads.c.id.desc())
    .limit(bindparam("most"))
)


class Lookups(Part):
    def one_view(self) -> AbstractContextManager[None]:
        """Whatever this thread reads inside is read on one connection; from SQLite as it was at one moment."""
        return self._database.one_view()

    def look_up(self, asked: Sequence[tuple[LookupScope, str]]) -> tuple[Known, ...]:
        """What there is at each (scope, instance), the instance as ``format_shape`` writes the symbols' values.

        The best kernel is the one with the least latency, of a rule version that this code has, that was never found
        wrong and never crashed at any instance of the workload on this target.
        """
        if not asked:
            return ()
        questions = [(*_scope(scope), instance) for scope, instance in asked]
        libraries: dict[int, list[BuiltLibrary]] = {}
        with self._database.read() as connection:
            best = {row.n: _latency_of(row) for row in BEST.rows(connection, questions)}
            for row in LIBRARIES.rows(connection, questions):
                libraries.setdefault(row.n, []).append(_library_of(row))
        return tuple(Known(best.get(n), tuple(libraries.get(n, ()))) for n in range(len(asked)))

    def best_kernels(self, asked: Sequence[tuple[LookupScope, str]]) -> tuple[KernelLatency | None, ...]:
        """The best kernel at each (scope, instance) as of ``look_up``, without the libraries."""
        questions = [(*_scope(scope), instance) for scope, instance in asked]
        result = {row.n: _latency_of(row) for row in self._rows(BEST, questions)}
        return tuple(result.get(n) for n in range(len(asked)))

    def latencies(self, asked: Sequence[tuple[LookupScope, str, str]]) -> tuple[KernelLatency | None, ...]:
        """What is known of each (scope, instance, kernel id); None where it was not measured. Of any job."""
        questions = [(*_scope(scope), instance, kernel) for scope, instance, kernel in asked]
        result = {row.n: _latency_of(row) for row in self._rows(LATENCIES, questions)}
        return tuple(result.get(n) for n in range(len(asked)))

    def measured_instances(self, scopes: Sequence[LookupScope]) -> tuple[tuple[str, ...], ...]:
        """The instances of each scope at which any kernel was measured by any job; 20,000 of all scopes at most."""
        result: list[list[str]] = [[] for _ in scopes]
        for row in self._rows(INSTANCES, list(map(_scope, scopes))):
            result[row.n].append(row.instance)
        return tuple(map(tuple, result))

    def newest_tasks(self, scopes: Sequence[LookupScope]) -> tuple[NamedTask | None, ...]:
        """The search task that built the newest library of each scope or, without any, the newest search task.

        Of any target where a scope has none. None where there is no search task.
        """
        result: dict[int, NamedTask] = {}
        for statement, has_target in ((NEWEST_TASKS, True), (NEWEST_TASKS_OF_ANY, False)):
            asked = [n for n, scope in enumerate(scopes) if (scope.target_fingerprint is not None) == has_target]
            for row in self._rows(statement, [_scope(scopes[n]) for n in asked]):
                number = row.searched if row.built is None else row.built
                if number is not None:
                    result[asked[row.n]] = NamedTask(number, row.fingerprint)
        return tuple(result.get(n) for n in range(len(scopes)))

    def tasks(self, numbers: Sequence[int]) -> Mapping[int, SearchTask]:
        """Search tasks by the numbers of their rows."""
        return {row.id: stored_task(row.task) for row in self._rows(TASKS, [(number,) for number in numbers])}

    def dispatch_tables(self, numbers: Sequence[int]) -> Mapping[int, JsonObject]:
        """The dispatch tables of libraries, by the numbers of their rows."""
        rows = self._rows(TABLES, [(number,) for number in numbers])
        with reading("a dispatch table"):
            return {row.artifact_id: from_json(row.dispatch) for row in rows}

    def kernels(self, ids: Sequence[str]) -> Mapping[str, MicroKernel]:
        """Micro-kernels by their ids."""
        rows = self._rows(KERNELS, [(id,) for id in ids])
        with reading("a kernel"):
            return {row.id: MicroKernel.from_json(from_json(row.kernel)) for row in rows}

    def workload_forms(self, keys: Sequence[str]) -> Mapping[str, WorkloadForm]:
        """Workloads by their keys; those that no job was submitted for are left out."""
        rows = self._rows(FORMS, [(key,) for key in keys])
        with reading("a workload"):
            return {row.key: _checked(_form(row.key, from_json(row.workload))) for row in rows}

    def workloads_like(self, program: str, limit: int) -> tuple[WorkloadForm, ...]:
        """The newest workloads with this ``program_key``, whatever their extents."""
        with self._database.read() as connection:
            rows = connection.execute(_LIKE, {"program": program, "most": limit}).all()
        return tuple(_form(row.key, row.workload) for row in rows if not isinstance(row.workload, Unreadable))

    def _rows(self, asking: Asking, questions: Sequence[Sequence[str | int | None]]) -> Sequence[AnyRow]:
        if not questions:
            return ()
        with self._database.read() as connection:
            return asking.rows(connection, questions)


def _scope(scope: LookupScope) -> tuple[str, str | None, int, str, str, str | None]:
    asked = (scope.workload_key, scope.target_fingerprint, scope.threads)
    return (*asked, scope.cache.value, protocol_of(scope.cache), scope.job_id)


def _latency_of(row: AnyRow) -> KernelLatency:
    return KernelLatency(row.kernel_id, row.instance, row.latency_s, row.readings, row.job_id)


def _library_of(row: AnyRow) -> BuiltLibrary:
    with reading(f"the comparison of library {row.digest}"):
        comparison = Comparison.from_json(from_json(row.comparison)) if row.comparison else None
    return BuiltLibrary(row.id, row.digest, row.job_id, row.protocol in PROTOCOLS, comparison)


def _checked(form: WorkloadForm) -> WorkloadForm:
    workload_from_json(form.workload)
    return form


def _form(key: str, stored: JsonObject) -> WorkloadForm:
    return WorkloadForm(key, split_label(stored)[0])
