"""Jobs, for anyone: submit, look, cancel, resume."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from tuner.errors import InvalidInput
from tuner.program.job.jobspec import JobSpec
from tuner.program.job.task import SearchTask
from tuner.program.language.instance import program_key
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.storage.access import NO_QUOTA, Quota
from tuner.storage.errors import Conflict, IdempotencyMismatch, Unreadable
from tuner.storage.jobs import Job, JobOrder, JobQuery, JobState, JobTable, NewEvent, Page
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import Part, append_events, end, find_job, insert_new, job_of, lock_job, set_state
from tuner.storage.sql.audit import audit
from tuner.storage.sql.columns import canonical
from tuner.storage.sql.engine import Database
from tuner.storage.sql.found import found_by
from tuner.storage.sql.identity import stored_workload
from tuner.storage.sql.keys import lock_owner
from tuner.storage.sql.queue import ABANDONED, FORGOTTEN
from tuner.storage.sql.quotas import Asked, check_quota
from tuner.storage.sql.schema import jobs, search_tasks, targets, workloads

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
        """Store a job in state WAITING with its search tasks and workloads, and its first event.

        Every task of ``spec`` has a target. Returns the job and whether it is new: the same owner with the same
        idempotency key and an equal ``spec.source`` gets the earlier job. Raises IdempotencyMismatch for another body,
        QuotaExceeded if the owner's jobs would use more than ``quota``. ``actor`` is the API key that submits it: the
        audit trail names it, and it signs what goes to the job's webhook.
        """
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
        """Raises NotFound."""
        with self._database.read() as connection:
            return find_job(connection, job_id)

    def list_jobs(
        self,
        cursor: str | None = None,
        state: JobState | None = None,
        limit: int = 50,
        *,
        text: str = "",
        whole: bool = True,
    ) -> Page[Job]:
        """Newest first; those that ``text`` finds (tuner.storage.filters). A cursor that is not ours raises
        InvalidInput on field ``cursor``.

        ``spec`` and ``summary`` may be large; unless ``whole`` they are not read, and empty.
        """
        columns = [column for column in jobs.c if whole or column.name not in ("spec", "summary")]
        query = select(*columns).order_by(jobs.c.number.desc()).limit(cursors.checked(limit) + 1)
        if (before := cursors.decode("jobs", cursor)) is not None:
            query = query.where(jobs.c.number < before)
        if state is not None:
            query = query.where(jobs.c.state == state.value)
        query = query.where(*found_by(text))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return cursors.page("jobs", rows, limit, lambda row: int(row.number), lambda row: job_of(row, whole))

    def find_jobs(self, query: JobQuery) -> JobTable:
        """Jobs in any order, any part of the list; jobs that are equal in that order are newest first."""
        wanted = and_(*_conditions(query))
        column = ORDERS[query.order]
        order = (column.desc() if query.descending else column.asc(), jobs.c.number.desc())
        rows = select(jobs).where(wanted).order_by(*order).offset(max(0, query.offset)).limit(query.limit)
        with self._database.read() as connection:
            total = connection.scalar(select(func.count()).select_from(jobs).where(wanted)) or 0
            return JobTable(tuple(map(job_of, connection.execute(rows))), total)

    def job_counts(self) -> Mapping[str, int]:
        """Jobs by state, every state named, and ``trials``: those of all jobs together."""
        query = select(jobs.c.state, func.count().label("jobs"), func.sum(jobs.c.trials).label("trials"))
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(jobs.c.state)).all()
        by_state = {state.value: 0 for state in JobState} | {row.state: row.jobs for row in rows}
        return by_state | {"trials": sum(int(row.trials) for row in rows)}

    def request_cancel(self, job_id: str, actor: str = "") -> Job:
        """WAITING becomes CANCELLED at once, RUNNING becomes CANCELLING; CANCELLING stays.

        Raises Conflict if the job has ended, NotFound.
        """
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
        """A CANCELLED or FAILED job goes back to WAITING, keeping its records and its spent time.

        Raises Conflict in any other state, NotFound, QuotaExceeded.
        """
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
    conditions = [jobs.c.number > 0, *found_by(query.text)]
    if query.state is not None:
        conditions.append(jobs.c.state == query.state.value)
    return conditions


def _asked(connection: Connection, job_id: str) -> Asked:
    row = connection.execute(select(jobs.c.budget_trials, jobs.c.budget_seconds).where(jobs.c.id == job_id)).one()
    return Asked(row.budget_trials, row.budget_seconds)


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


def workload_ids(connection: Connection, values: Mapping[str, JsonObject]) -> dict[str, int]:
    """The row number of each workload (its canonical form and its label) by its key; new ones are added."""
    programs = {key: program_key(values[key]) for key in values}
    rows = [{"key": key, "workload": values[key], "program_key": programs[key]} for key in sorted(values)]
    insert_new(connection, workloads, rows)
    query = select(workloads.c.key, workloads.c.id, workloads.c.program_key).where(workloads.c.key.in_(values))
    known = connection.execute(query.order_by(workloads.c.id)).all()
    for row in known:
        if not row.program_key:
            # Imported by an earlier version, which left it out.
            change = update(workloads).where(workloads.c.id == row.id)
            connection.execute(change.values(program_key=programs[row.key]))
    return {row.key: row.id for row in known}


def _insert_tasks(connection: Connection, job_id: str, spec: JobSpec) -> None:
    values: dict[str, JsonObject] = {}
    for task in spec.tasks:
        values.setdefault(task.workload.key, stored_workload(task.workload))
    known_workloads = workload_ids(connection, values)
    known_targets = target_ids(connection, [_target(task, index) for index, task in enumerate(spec.tasks)])
    rows = [
        {
            "job_id": job_id,
            "position": index,
            "count": count,
            "workload_id": known_workloads[task.workload.key],
            "target_id": known_targets[_target(task, index).fingerprint],
            "threads": task.threads,
            "cache": task.cache.value,
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
