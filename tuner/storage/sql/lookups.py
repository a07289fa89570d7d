"""What lookups read: the best kernel at an instance, the libraries of a place, instances near by.

Statements are built once for each kind of database. Each joins the questions (``asked_table``) with what answers them,
by indexes that begin with the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
)

from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject
from tuner.records import PROTOCOL
from tuner.rules.registry import RULES
from tuner.rules.space import MicroKernel
from tuner.storage.lookups import BuiltLibrary, KernelLatency, Known, NamedTask, Place, WorkloadForm
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.asked import Asking
from tuner.storage.sql.identity import program_key, split_label, stored_task
from tuner.storage.sql.schema import (
    artifacts,
    dispatchers,
    disqualified_kernels,
    kernel_latencies,
    micro_kernels,
    search_tasks,
    targets,
    tuning_records,
    workloads,
)

MOST_INSTANCES = 20_000
"""That one call walks over: a workload has hundreds, a call may ask about a thousand workloads."""

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
    def look_up(self, asked: Sequence[tuple[Place, str]]) -> tuple[Known, ...]:
        if not asked:
            return ()
        questions = [(*_place(place), instance) for place, instance in asked]
        libraries: dict[int, list[BuiltLibrary]] = {}
        with self._database.read() as connection:
            best = {row.n: _latency_of(row) for row in _BEST.rows(connection, questions)}
            for row in _LIBRARIES.rows(connection, questions):
                libraries.setdefault(row.n, []).append(BuiltLibrary(row.id, row.digest, row.job_id))
        return tuple(Known(best.get(n), tuple(libraries.get(n, ()))) for n in range(len(asked)))

    def latencies(self, asked: Sequence[tuple[Place, str, str]]) -> tuple[KernelLatency | None, ...]:
        questions = [(*_place(place), instance, kernel) for place, instance, kernel in asked]
        found = {row.n: _latency_of(row) for row in self._rows(_LATENCIES, questions)}
        return tuple(found.get(n) for n in range(len(asked)))

    def measured_instances(self, places: Sequence[Place]) -> tuple[tuple[str, ...], ...]:
        found: list[list[str]] = [[] for _ in places]
        for row in self._rows(_INSTANCES, list(map(_place, places))):
            found[row.n].append(row.instance)
        return tuple(map(tuple, found))

    def newest_tasks(self, places: Sequence[Place]) -> tuple[NamedTask | None, ...]:
        rows = self._rows(_NEWEST_TASKS, list(map(_place, places)))
        found = {row.n: NamedTask(row.id, row.fingerprint) for row in rows}
        return tuple(found.get(n) for n in range(len(places)))

    def tasks(self, numbers: Sequence[int]) -> Mapping[int, SearchTask]:
        return {row.id: stored_task(row.task) for row in self._by(_TASKS, numbers=numbers)}

    def dispatch_tables(self, numbers: Sequence[int]) -> Mapping[int, JsonObject]:
        return {row.artifact_id: row.dispatch for row in self._by(_TABLES, numbers=numbers)}

    def kernels(self, ids: Sequence[str]) -> Mapping[str, MicroKernel]:
        return {row.id: MicroKernel.from_json(row.kernel) for row in self._by(_KERNELS, ids=ids)}

    def workload_forms(self, keys: Sequence[str]) -> Mapping[str, WorkloadForm]:
        return {row.key: _form(row) for row in self._by(_FORMS, keys=keys)}

    def workloads_like(self, canonical: JsonObject, limit: int) -> tuple[WorkloadForm, ...]:
        with self._database.read() as connection:
            rows = connection.execute(_LIKE, {"program": program_key(canonical), "most": limit}).all()
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


def _place(place: Place) -> tuple[str, str | None, int, str | None]:
    return (place.workload_key, place.target_fingerprint, place.threads, place.job_id)


def _latency_of(row: AnyRow) -> KernelLatency:
    return KernelLatency(row.kernel_id, row.instance, row.latency_s, row.readings, row.job_id)


def _form(row: Any) -> WorkloadForm:
    return WorkloadForm(row.key, split_label(row.workload)[0])


# -- statements -------------------------------------------------------------------------------------------------------
def _best(asked: Subquery) -> Select[Any]:
    others = kernel_latencies.alias("other")
    of_place, other = _of_place(asked), others.c
    same = _same(other, asked, workloads.c.id, targets.c.id)
    best = (
        select(other.kernel_id)
        .where(*same, other.instance == asked.c.instance, _is_current(other), ~_is_disqualified(other))
        .where(or_(asked.c.job.is_(None), _was_measured_by(others, asked)))
        .order_by(other.latency_s, other.record_id)
        .limit(1)
    )
    return _with_job(asked, of_place, best.correlate(asked, workloads, targets).scalar_subquery())


def _latencies(asked: Subquery) -> Select[Any]:
    return _with_job(asked, _of_place(asked), asked.c.kernel)


def _with_job(asked: Subquery, of_place: FromClause, kernel_id: ScalarSelect[Any] | ColumnElement[Any]) -> Select[Any]:
    """What is known of the kernel of this id at the instance asked for, with the job of its newest reading."""
    known = kernel_latencies.c
    wanted = and_(
        *_same(known, asked, workloads.c.id, targets.c.id),
        known.instance == asked.c.instance,
        known.kernel_id == kernel_id,
    )
    return select(
        asked.c.n, known.kernel_id, known.instance, known.latency_s, known.readings, search_tasks.c.job_id
    ).select_from(
        of_place.join(kernel_latencies, wanted)
        .outerjoin(tuning_records, tuning_records.c.id == known.record_id)
        .outerjoin(search_tasks, search_tasks.c.id == tuning_records.c.search_task_id)
    )


def _libraries(asked: Subquery) -> Select[Any]:
    same = and_(
        artifacts.c.workload_id == workloads.c.id,
        artifacts.c.target_id == targets.c.id,
        artifacts.c.threads == asked.c.threads,
    )
    of_place = _of_place(asked)
    served = and_(asked.c.job.is_(None), artifacts.c.superseded_by.is_(None))
    return (
        select(asked.c.n, artifacts.c.id, artifacts.c.digest, search_tasks.c.job_id)
        .select_from(of_place.join(artifacts, same).join(search_tasks, search_tasks.c.id == artifacts.c.search_task_id))
        .where(or_(served, search_tasks.c.job_id == asked.c.job))
        .order_by(asked.c.n, artifacts.c.id.desc())
    )


def _instances(asked: Subquery) -> Select[Any]:
    """The distinct instances of each place, one step in the index for each: never a row for each kernel."""
    place = ("n", "workload_id", "target_id", "threads")
    known = kernel_latencies.alias("first").c
    first = (
        select(known.instance)
        .where(*_same(known, asked, workloads.c.id, targets.c.id))
        .order_by(known.instance)
        .limit(1)
        .correlate(asked, workloads, targets)
    )
    walk = (
        select(
            asked.c.n,
            workloads.c.id.label("workload_id"),
            targets.c.id.label("target_id"),
            asked.c.threads,
            first.scalar_subquery().label("instance"),
        )
        .select_from(_of_place(asked))
        .cte("walk", recursive=True)
    )
    known = kernel_latencies.alias("following").c
    following = (
        select(known.instance)
        .where(*_same(known, walk, walk.c.workload_id, walk.c.target_id), known.instance > walk.c.instance)
        .order_by(known.instance)
        .limit(1)
        .correlate(walk)
    )
    step = select(*(walk.c[name] for name in place), following.scalar_subquery()).where(walk.c.instance.is_not(None))
    steps = walk.union_all(step)
    return select(steps.c.n, steps.c.instance).where(steps.c.instance.is_not(None)).limit(MOST_INSTANCES)


def _newest_tasks(asked: Subquery) -> Select[Any]:
    is_target = or_(asked.c.target.is_(None), targets.c.fingerprint == asked.c.target)
    tasks = search_tasks.alias("task")
    task = tasks.c
    of_task = and_(
        task.workload_id == workloads.c.id,
        task.threads == asked.c.threads,
        or_(asked.c.job.is_(None), task.job_id == asked.c.job),
        is_target,
    )
    built = (
        select(artifacts.c.search_task_id)
        .join(tasks, task.id == artifacts.c.search_task_id)
        .join(targets, targets.c.id == artifacts.c.target_id)
        .where(artifacts.c.workload_id == workloads.c.id, of_task)
        .order_by(artifacts.c.id.desc())
    )
    newest = select(task.id).join(targets, targets.c.id == task.target_id).where(of_task).order_by(task.id.desc())
    chosen = func.coalesce(*(query.limit(1).correlate(asked, workloads).scalar_subquery() for query in (built, newest)))
    named = targets.alias("named")
    return (
        select(asked.c.n, search_tasks.c.id, named.c.fingerprint)
        .select_from(asked.join(workloads, workloads.c.key == asked.c.workload))
        .join(search_tasks, search_tasks.c.id == chosen)
        .join(named, named.c.id == search_tasks.c.target_id)
    )


# -- conditions -------------------------------------------------------------------------------------------------------
def _of_place(asked: Subquery) -> FromClause:
    """The questions with the rows of their workloads and targets."""
    return asked.join(workloads, workloads.c.key == asked.c.workload).join(
        targets, targets.c.fingerprint == asked.c.target
    )


def _same(known: Any, asked: FromClause, workload_id: Any, target_id: Any) -> tuple[ColumnElement[bool], ...]:
    """Latencies of the place that is asked about, which may be compared with each other."""
    return (
        known.workload_id == workload_id,
        known.target_id == target_id,
        known.threads == asked.c.threads,
        known.protocol == PROTOCOL,
    )


def _is_current(known: Any) -> ColumnElement[bool]:
    """Kernels that mean to this version what they meant to the one that measured them."""
    return or_(*(and_(known.rule == rule.name, known.rule_version == rule.version) for rule in RULES))


def _is_disqualified(known: Any) -> ColumnElement[bool]:
    bad = disqualified_kernels.c
    return exists(literal(1)).where(
        bad.workload_id == known.workload_id,
        bad.target_id == known.target_id,
        bad.kernel_id == known.kernel_id,
    )


def _was_measured_by(known: FromClause, asked: Subquery) -> ColumnElement[bool]:
    """Whether the job that is asked about measured this kernel at this instance."""
    record, task, its = tuning_records.alias("own").c, search_tasks.alias("own_task").c, known.c
    return (
        select(literal(1))
        .where(
            task.job_id == asked.c.job,
            task.workload_id == its.workload_id,
            task.target_id == its.target_id,
            record.search_task_id == task.id,
            record.kernel_id == its.kernel_id,
            record.instance == its.instance,
            record.latency_s.is_not(None),
        )
        .correlate(known, asked)
        .exists()
    )


_BEST, _LATENCIES, _LIBRARIES = Asking(_best), Asking(_latencies), Asking(_libraries)
_INSTANCES, _NEWEST_TASKS = Asking(_instances), Asking(_newest_tasks)
