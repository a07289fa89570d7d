"""The statements of lookups: the best kernel at an instance, the libraries of a scope, instances near by.

Each is built once for each kind of database. It joins the questions (``Asking``) with what answers them, by indexes
that begin with the scope.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    Subquery,
    Text,
    and_,
    cast,
    func,
    literal,
    or_,
    select,
)

from tuner.schedule.cut.rule import PREFIX
from tuner.schedule.registry import CUT_VERSION, RULES
from tuner.schedule.serial import SERIAL
from tuner.storage.sql.library_rows import may_be_chosen
from tuner.storage.sql.schema import (
    artifacts,
    dispatchers,
    disqualified_kernels,
    kernel_latencies,
    measured_instances,
    micro_kernels,
    search_tasks,
    targets,
    tuning_records,
    workloads,
)
from tuner.storage.sql.values_table import Asking

MAX_INSTANCES = 20_000
"""Instances that one call reads: a workload has hundreds, a call may ask about a thousand workloads."""


def _best(asked: Subquery) -> Select[Any]:
    others = kernel_latencies.alias("other")
    other = others.c
    same = _same(other, asked, workloads.c.id, targets.c.id)
    best = (
        select(other.kernel_id)
        .where(*same, other.instance == asked.c.instance, is_current(other), ~_is_disqualified(other))
        .where(or_(asked.c.job.is_(None), _was_measured_by(others, asked)))
        .order_by(other.latency_s, other.record_id)
        .limit(1)
    )
    return _with_job(_once(_questions(asked, best.correlate(asked, workloads, targets).scalar_subquery())))


def _latencies(asked: Subquery) -> Select[Any]:
    return _with_job(_questions(asked, asked.c.kernel).subquery("chosen"))


def _questions(asked: Subquery, kernel_id: ScalarSelect[Any] | ColumnElement[Any]) -> Select[Any]:
    """A row for each question whose workload and target are known, with the kernel that it is about."""
    place = (workloads.c.id.label("workload_id"), targets.c.id.label("target_id"))
    scope = (*place, asked.c.threads, asked.c.protocol)
    return select(asked.c.n, *scope, asked.c.instance, kernel_id.label("kernel_id")).select_from(_of_scope(asked))


def _once(query: Select[Any]) -> CTE:
    """What it finds, computed before anything is joined with it: as a condition of a join a subquery may be computed
    for every row."""
    return query.cte("chosen").prefix_with("MATERIALIZED", dialect="postgresql")


def _with_job(chosen: FromClause) -> Select[Any]:
    """What is known of the kernel of each question at its instance, with the job of its newest reading."""
    known = kernel_latencies.c
    wanted = and_(
        *_same(known, chosen, chosen.c.workload_id, chosen.c.target_id),
        known.instance == chosen.c.instance,
        known.kernel_id == chosen.c.kernel_id,
    )
    return select(
        chosen.c.n, known.kernel_id, known.instance, known.latency_s, known.readings, search_tasks.c.job_id
    ).select_from(
        chosen.join(kernel_latencies, wanted)
        .outerjoin(tuning_records, tuning_records.c.id == known.record_id)
        .outerjoin(search_tasks, search_tasks.c.id == tuning_records.c.search_task_id)
    )


def _libraries(asked: Subquery) -> Select[Any]:
    same = and_(
        artifacts.c.workload_id == workloads.c.id,
        artifacts.c.target_id == targets.c.id,
        artifacts.c.threads == asked.c.threads,
        artifacts.c.cache == asked.c.cache,
    )
    of_scope = _of_scope(asked)
    served = and_(asked.c.job.is_(None), may_be_chosen())
    return (
        select(asked.c.n, search_tasks.c.job_id)
        .add_columns(*(artifacts.c[name] for name in ("id", "digest", "protocol")))
        .add_columns(cast(artifacts.c.comparison, Text).label("comparison"))
        .select_from(of_scope.join(artifacts, same).join(search_tasks, search_tasks.c.id == artifacts.c.search_task_id))
        .where(or_(served, search_tasks.c.job_id == asked.c.job))
        .order_by(asked.c.n, artifacts.c.id.desc())
    )


def _instances(asked: Subquery) -> Select[Any]:
    """The instances of each scope at which anything was measured."""
    known = measured_instances
    same = and_(*_same(known.c, asked, workloads.c.id, targets.c.id))
    found = select(asked.c.n, known.c.instance).select_from(_of_scope(asked).join(known, same))
    return found.order_by(asked.c.n, known.c.instance).limit(MAX_INSTANCES)


def _newest_tasks(asked: Subquery) -> Select[Any]:
    """The newest search tasks of scopes that have a target. No condition on what is found: it would be computed once
    for that, and again for the answer."""
    built, searched = (newest(asked, targets).scalar_subquery() for newest in (_newest_built, _newest_searched))
    columns = (asked.c.n, targets.c.fingerprint, built.label("built"), searched.label("searched"))
    return select(*columns).select_from(_of_scope(asked))


def _newest_tasks_of_any(asked: Subquery) -> Select[Any]:
    """The newest search tasks of scopes without a target: the newest of all targets."""
    built, searched = (newest(asked, None).scalar_subquery() for newest in (_newest_built, _newest_searched))
    known = asked.join(workloads, workloads.c.key == asked.c.workload)
    chosen = _once(select(asked.c.n, built.label("built"), searched.label("searched")).select_from(known))
    of_task = search_tasks.c.id == func.coalesce(chosen.c.built, chosen.c.searched)
    tasks = chosen.join(search_tasks, of_task).join(targets, targets.c.id == search_tasks.c.target_id)
    return select(chosen.c.n, targets.c.fingerprint, chosen.c.built, chosen.c.searched).select_from(tasks)


def _newest_built(asked: Subquery, target: FromClause | None) -> Select[Any]:
    """The search task that built the newest library of a scope."""
    task = search_tasks.alias("built_by").c
    return _newest(
        select(artifacts.c.search_task_id).join(task.id.table, task.id == artifacts.c.search_task_id),
        artifacts, task.job_id, asked, target,
    )  # fmt: skip


def _newest_searched(asked: Subquery, target: FromClause | None) -> Select[Any]:
    searched = search_tasks.alias("searched")
    return _newest(select(searched.c.id), searched, searched.c.job_id, asked, target)


def _newest(
    query: Select[Any], table: FromClause, job_id: ColumnElement[Any], asked: Subquery, target: FromClause | None
) -> Select[Any]:
    """The newest row of a table in the queried scope."""
    row = table.c
    query = query.where(row.workload_id == workloads.c.id, row.threads == asked.c.threads, row.cache == asked.c.cache)
    query = query.where(or_(asked.c.job.is_(None), job_id == asked.c.job)).order_by(row.id.desc()).limit(1)
    if target is None:
        return query.correlate(asked, workloads)
    return query.where(row.target_id == target.c.id).correlate(asked, workloads, target)


def _by(key: ColumnElement[Any], asked_as: str, **documents: ColumnElement[Any]) -> Asking:
    """Rows by their key, with JSON columns as text."""
    shown = [cast(document, Text).label(name) for name, document in documents.items()]

    def build(asked: Subquery) -> Select[Any]:
        return select(key, *shown).join_from(asked, key.table, key == asked.c[asked_as])

    return Asking(build, (asked_as,))


# -- conditions -------------------------------------------------------------------------------------------------------
def _of_scope(asked: Subquery) -> FromClause:
    """The questions with the rows of their workloads and targets."""
    return asked.join(workloads, workloads.c.key == asked.c.workload).join(
        targets, targets.c.fingerprint == asked.c.target
    )


def _same(known: Any, asked: FromClause, workload_id: Any, target_id: Any) -> tuple[ColumnElement[bool], ...]:
    """Latencies of the queried scope, which may be compared with each other."""
    return (
        known.workload_id == workload_id,
        known.target_id == target_id,
        known.threads == asked.c.threads,
        known.protocol == asked.c.protocol,
    )


def is_current(known: Any) -> ColumnElement[bool]:
    """Kernels that mean to this version what they meant to the one that measured them: as registry.is_current."""
    cut = or_(*(known.rule.startswith(kind + PREFIX, autoescape=True) for kind in ("", SERIAL)))
    whole = (
        and_(known.rule.in_((each.name, SERIAL + each.name)), known.rule_version == each.version) for each in RULES
    )
    return or_(and_(cut, known.rule_version == CUT_VERSION), *whole)


def _is_disqualified(known: Any) -> ColumnElement[bool]:
    bad = disqualified_kernels.c
    first_bad = (
        select(literal(1))
        .where(
            bad.workload_id == known.workload_id,
            bad.target_id == known.target_id,
            bad.kernel_id == known.kernel_id,
        )
        # One step in an index; of EXISTS PostgreSQL makes a join that reads every bad kernel of the workload.
        .limit(1)
        .scalar_subquery()
    )
    return first_bad.is_not(None)


def _was_measured_by(known: FromClause, asked: Subquery) -> ColumnElement[bool]:
    """Whether the queried job measured this kernel at this instance."""
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


BEST, LATENCIES, LIBRARIES = Asking(_best), Asking(_latencies), Asking(_libraries)
INSTANCES, NEWEST_TASKS = Asking(_instances), Asking(_newest_tasks)
NEWEST_TASKS_OF_ANY = Asking(_newest_tasks_of_any)
TASKS = _by(search_tasks.c.id, "number", task=search_tasks.c.task)
TABLES = _by(dispatchers.c.artifact_id, "number", dispatch=dispatchers.c.dispatch)
KERNELS = _by(micro_kernels.c.id, "kernel", kernel=micro_kernels.c.kernel)
FORMS = _by(workloads.c.key, "workload", workload=workloads.c.workload)
