"""Jobs, for anyone: submit, look, cancel, resume."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select, update

from tuner.errors import InvalidInput
from tuner.program.job.jobspec import JobSpec
from tuner.program.job.task import SearchTask
from tuner.program.language.instance import program_key
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.records import Baselines
from tuner.storage.access import NO_QUOTA, Quota
from tuner.storage.errors import Conflict, IdempotencyMismatch, NotFound, Unreadable, reading
from tuner.storage.events import NewEvent
from tuner.storage.jobs import Job, JobOrder, JobQuery, JobState, JobTable, SearchTaskRow
from tuner.storage.paging import Page
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import (
    AnyRow,
    Part,
    append_events,
    end,
    find_job,
    insert_new,
    job_of,
    lock_job,
    set_state,
)
from tuner.storage.sql.attempts import FORGOTTEN
from tuner.storage.sql.audit import audit
from tuner.storage.sql.columns import canonical
from tuner.storage.sql.engine import Database
from tuner.storage.sql.identity import stored_task, stored_workload
from tuner.storage.sql.keys import lock_owner
from tuner.storage.sql.queue import ABANDONED
from tuner.storage.sql.quotas import Asked, check_quota
from tuner.storage.sql.schema import api_keys, jobs, search_tasks, targets, workloads

ORDERS: dict[JobOrder, ColumnElement[Any]] = {
    JobOrder.CREATED: jobs.c.number,
    JobOrder.NAME: func.lower(jobs.c.name),
    JobOrder.STATE: jobs.c.state,
    JobOrder.TRIALS: jobs.c.trials,
}


class Jobs(Part):
    """``clock`` (nanoseconds) only makes ids sort roughly by age; nothing is decided by it."""

    def __init__(self, database: Database, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__(database)
        self._clock = clock

    def create_job(
        self,
        spec: JobSpec,
        owner: str = "",
        idempotency_key: str | None = None,
        *,
        actor: str = "",
        quota: Quota = NO_QUOTA,
    ) -> tuple[Job, bool]:
        job_id = f"job-{self._clock() // 1000:013x}{secrets.token_hex(3)}"
        row = {
            "id": job_id,
            "name": spec.name,
            "owner": owner,
            "idempotency_key": idempotency_key,
            "state": JobState.WAITING.value,
            "device": spec.device,
            "spec": spec.source,
            "summary": {},
            "priority": spec.priority,
            "budget_trials": spec.budget.trials,
            "budget_seconds": spec.budget.seconds,
            "webhook": None if spec.webhook is None else {"url": spec.webhook, "key": actor},
        }
        with self._database.write() as connection:
            if not quota.unlimited:
                lock_owner(connection, owner)
            if insert_new(connection, jobs, [row]) == 0:
                return _earlier(connection, spec, owner, idempotency_key), False
            if not quota.unlimited:
                check_quota(connection, quota, owner, job_id, Asked(spec.budget.trials, spec.budget.seconds))
            audit(connection, actor, "job.create", job_id, {"name": spec.name, "owner": owner})
            _insert_tasks(connection, job_id, spec)
            append_events(connection, job_id, [NewEvent("state", {"state": JobState.WAITING.value})])
            return find_job(connection, job_id), True

    def get_job(self, job_id: str) -> Job:
        with self._database.read() as connection:
            return find_job(connection, job_id)

    def list_jobs(
        self, cursor: str | None = None, state: JobState | None = None, limit: int = 50, *, whole: bool = True
    ) -> Page[Job]:
        columns = [column for column in jobs.c if whole or column.name not in ("spec", "summary")]
        query = select(*columns).order_by(jobs.c.number.desc()).limit(cursors.checked(limit) + 1)
        if (before := cursors.decode("jobs", cursor)) is not None:
            query = query.where(jobs.c.number < before)
        if state is not None:
            query = query.where(jobs.c.state == state.value)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return cursors.page("jobs", rows, limit, lambda row: int(row.number), lambda row: job_of(row, whole))

    def find_jobs(self, query: JobQuery) -> JobTable:
        wanted = and_(*_conditions(query))
        column = ORDERS[query.order]
        order = (column.desc() if query.descending else column.asc(), jobs.c.number.desc())
        rows = select(jobs).where(wanted).order_by(*order).offset(max(0, query.offset)).limit(query.limit)
        with self._database.read() as connection:
            total = connection.scalar(select(func.count()).select_from(jobs).where(wanted)) or 0
            return JobTable(tuple(map(job_of, connection.execute(rows))), total)

    def search_tasks(self, job_id: str, first: int = 0, limit: int | None = None) -> tuple[SearchTaskRow, ...]:
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tasks_of(connection, job_id, first, limit)

    def task_keys(self, job_id: str) -> tuple[str, ...]:
        query = (
            select(workloads.c.key)
            .join(search_tasks, workloads.c.id == search_tasks.c.workload_id)
            .where(search_tasks.c.job_id == job_id)
            .order_by(search_tasks.c.position)
        )
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tuple(connection.scalars(query))

    def request_cancel(self, job_id: str, actor: str = "") -> Job:
        with self._database.write() as connection:
            job = lock_job(connection, job_id)
            if job.state in (JobState.WAITING, JobState.RUNNING):
                audit(connection, actor, "job.cancel", job_id, {"name": job.name, "state": job.state.value})
            if job.state is JobState.WAITING:
                return end(connection, job_id, JobState.CANCELLED)
            if job.state is JobState.RUNNING:
                cancelling = set_state(connection, job_id, JobState.CANCELLING, {})
                # Nobody is left to end it.
                is_abandoned = connection.scalar(select(jobs.c.id).where(jobs.c.id == job_id, ABANDONED))
                return end(connection, job_id, JobState.CANCELLED) if is_abandoned else cancelling
            if job.state is JobState.CANCELLING:
                return job
            raise Conflict(f"job {job_id} is {job.state}: only a job that has not ended can be cancelled")

    def resume_job(self, job_id: str, actor: str = "", quota: Quota = NO_QUOTA) -> Job:
        with self._database.write() as connection:
            job = lock_job(connection, job_id)
            if job.state not in (JobState.CANCELLED, JobState.FAILED):
                raise Conflict(f"job {job_id} is {job.state}: only a CANCELLED or FAILED job can be resumed")
            if not quota.unlimited:
                lock_owner(connection, job.owner)
                check_quota(connection, quota, job.owner, job_id, _asked(connection, job_id))
            audit(connection, actor, "job.resume", job_id, {"name": job.name, "state": job.state.value})
            event = {"resumed": True}
            anew = {"error": "", "ended_at": None, "worker": None} | FORGOTTEN
            return set_state(connection, job_id, JobState.WAITING, event, **anew)


def _conditions(query: JobQuery) -> list[ColumnElement[bool]]:
    conditions = [jobs.c.number > 0]
    if query.state is not None:
        conditions.append(jobs.c.state == query.state.value)
    if query.text:
        owners = select(api_keys.c.id).where(api_keys.c.name.icontains(query.text, autoescape=True))
        conditions.append(
            or_(
                jobs.c.name.icontains(query.text, autoescape=True),
                jobs.c.id.icontains(query.text, autoescape=True),
                jobs.c.owner.icontains(query.text, autoescape=True),
                jobs.c.owner.in_(owners),
            )
        )
    return conditions


def _asked(connection: Connection, job_id: str) -> Asked:
    row = connection.execute(select(jobs.c.budget_trials, jobs.c.budget_seconds).where(jobs.c.id == job_id)).one()
    return Asked(row.budget_trials, row.budget_seconds)


def select_tasks() -> Select[Any]:
    """Search tasks with the names of their workloads and targets."""
    return (
        select(search_tasks, workloads.c.key, targets.c.fingerprint)
        .join(workloads, workloads.c.id == search_tasks.c.workload_id)
        .join(targets, targets.c.id == search_tasks.c.target_id)
    )


def tasks_of(
    connection: Connection, job_id: str, first: int = 0, limit: int | None = None
) -> tuple[SearchTaskRow, ...]:
    wanted = and_(search_tasks.c.job_id == job_id, search_tasks.c.position >= first)
    query = select_tasks().where(wanted).order_by(search_tasks.c.position).limit(limit)
    return tuple(map(task_of, connection.execute(query)))


def task_of(row: AnyRow) -> SearchTaskRow:
    what = f"search task {row.id} of job {row.job_id}"
    with reading(what, row.task):
        task = stored_task(json.dumps(row.task))
    with reading(f"what was timed for {what}", row.baselines):
        baselines = Baselines.from_json(row.baselines)
    return SearchTaskRow(
        id=row.id,
        job_id=row.job_id,
        position=row.position,
        # Row has a method of that name.
        count=row._mapping["count"],
        workload_key=row.key,
        target_fingerprint=row.fingerprint,
        task=task,
        spent_s=row.spent_s,
        done=row.done,
        baselines=baselines,
    )


def find_task(connection: Connection, job_id: str, search_task_id: int) -> AnyRow:
    """The row of a search task of this job. Raises NotFound."""
    wanted = and_(search_tasks.c.id == search_task_id, search_tasks.c.job_id == job_id)
    row = connection.execute(select(search_tasks).where(wanted)).one_or_none()
    if row is None:
        raise no_task(job_id, search_task_id)
    return row


def no_task(job_id: str, search_task_id: int) -> NotFound:
    return NotFound(f"job {job_id} has no search task {search_task_id}")


def target_ids(connection: Connection, wanted: Sequence[Target]) -> dict[str, int]:
    """The row number of each target by its fingerprint; new ones are added."""
    values = {target.fingerprint: target.to_json() for target in wanted}
    rows = [{"fingerprint": name, "target": values[name]} for name in sorted(values)]
    insert_new(connection, targets, rows)
    query = select(targets.c.fingerprint, targets.c.id, targets.c.target).where(targets.c.fingerprint.in_(values))
    known = connection.execute(query).all()
    for row in known:
        if isinstance(row.target, Unreadable):
            # The fingerprint is a digest of what stood there.
            connection.execute(update(targets).where(targets.c.id == row.id).values(target=values[row.fingerprint]))
    return {row.fingerprint: row.id for row in known}


def _workload_ids(connection: Connection, tasks: Sequence[SearchTask]) -> dict[str, int]:
    values: dict[str, JsonObject] = {}
    for task in tasks:
        values.setdefault(task.workload.key, stored_workload(task.workload))
    rows = [{"key": key, "workload": values[key], "program_key": program_key(values[key])} for key in sorted(values)]
    insert_new(connection, workloads, rows)
    query = select(workloads.c.key, workloads.c.id).where(workloads.c.key.in_(values))
    return {row.key: row.id for row in connection.execute(query)}


def _insert_tasks(connection: Connection, job_id: str, spec: JobSpec) -> None:
    known_workloads = _workload_ids(connection, spec.tasks)
    known_targets = target_ids(connection, [_target(task, index) for index, task in enumerate(spec.tasks)])
    rows = [
        {
            "job_id": job_id,
            "position": index,
            "count": count,
            "workload_id": known_workloads[task.workload.key],
            "target_id": known_targets[_target(task, index).fingerprint],
            "threads": task.threads,
            "task": task.to_json(),
        }
        for index, (task, count) in enumerate(zip(spec.tasks, spec.counts, strict=True))
    ]
    connection.execute(search_tasks.insert(), rows)


def _target(task: SearchTask, index: int) -> Target:
    if task.target is None:
        raise InvalidInput(f"tasks[{index}].target", "is native and not filled in", "use spec.on(target)")
    return task.target


def _earlier(connection: Connection, spec: JobSpec, owner: str, idempotency_key: str | None) -> Job:
    """The job that the idempotency key was first used for. Raises IdempotencyMismatch if its body was another."""
    same = and_(jobs.c.owner == owner, jobs.c.idempotency_key == idempotency_key)
    row = connection.execute(select(jobs).where(same)).one()
    if canonical(row.spec) != canonical(spec.source):
        raise IdempotencyMismatch(f"idempotency key {idempotency_key!r} was used for another body; use a new key")
    return job_of(row)
