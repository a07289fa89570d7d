"""Leasing a job, extending the lease, writing under it, releasing it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Text, and_, bindparam, cast, func, select, update

from tuner.errors import InvalidInput
from tuner.program.language.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.storage.errors import CorruptData, reading
from tuner.storage.jobs import Job, JobState, Lease, NewEvent
from tuner.storage.sql import queue
from tuner.storage.sql._rows import (
    WORKED_ON,
    AnyRow,
    Part,
    append_events,
    end,
    insert_events,
    lease_lost,
    lock_leased,
    set_state,
)
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.counts import count_records
from tuner.storage.sql.migrate import check_schema_in
from tuner.storage.sql.queue import ABANDONED, count_failure
from tuner.storage.sql.results import insert_results, newest_record
from tuner.storage.sql.schema import jobs, search_tasks, targets, workloads
from tuner.storage.sql.search_tasks import find_task, no_task, tasks_of

# Built once: composing a statement takes longer than running it.
_TASK = (
    select(
        search_tasks.c.id,
        search_tasks.c.workload_id,
        search_tasks.c.target_id,
        search_tasks.c.threads,
        search_tasks.c.cache,
        # As text, by which a task that was parsed before is found.
        cast(search_tasks.c.task, Text).label("text"),
        targets.c.anchor_s,
        newest_record(search_tasks.c.id).label("newest_record"),
    )
    .join(workloads, workloads.c.id == search_tasks.c.workload_id)
    .join(targets, targets.c.id == search_tasks.c.target_id)
    .where(search_tasks.c.id == bindparam("task"), search_tasks.c.job_id == bindparam("job"))
    # One transaction at a time adds trials to a workload, until it ends: two that read the earlier readings of a pair
    # at once would each miss the other's. SQLite knows no row locks and needs none: its writers come one at a time.
    .with_for_update(key_share=True, of=workloads)
)
_SPENT = update(search_tasks).where(search_tasks.c.id == bindparam("of_task")).values(spent_s=bindparam("seconds"))
_COUNTED = (
    update(jobs)
    .where(jobs.c.id == bindparam("of_job"))
    .values(trials=jobs.c.trials + bindparam("stored"), event_seq=jobs.c.event_seq + bindparam("count"))
    .returning(jobs.c.event_seq)
)
_SUMMED = _COUNTED.values(summary=bindparam("progress", type_=jobs.c.summary.type))


_ATTEMPTED = select(
    *(jobs.c[name] for name in ("id", "state", "worker", "trials", "failed_attempts", "trials_at_failure"))
).where(jobs.c.id == bindparam("job"))


_CARRIED = select(jobs.c.spec, jobs.c.summary, jobs.c.webhook).where(jobs.c.id == bindparam("job"))


class Leases(Part):
    def lease_job(self, worker: str, lease_s: float, device_keys: Sequence[str] | None = None) -> Lease | None:
        """Take the oldest WAITING job, or one whose lease has expired, and make it RUNNING with the next epoch.

        A lease that has expired counts as a failed attempt (see ``fail_attempt``). A CANCELLING job whose lease has
        expired becomes CANCELLED and is not handed out. ``device_keys`` restricts to jobs for those devices. None if
        there is no such job.
        """
        # Workers poll, mostly in vain: read first, and write only if there is a job to lease.
        with self._database.read() as connection:
            check_schema_in(connection)
            if not queue.anything_to_do(connection, device_keys):
                return None
        with self._database.write() as connection:
            queue.take_turn(connection)
            _end_abandoned(connection)
            job_id = queue.next_job(connection, device_keys)
            return None if job_id is None else _take(connection, job_id, worker, lease_s)

    def heartbeat(self, lease: Lease, lease_s: float) -> JobState:
        """Extend the lease; returns the job's state (RUNNING or CANCELLING). Raises LeaseLost."""
        extended = update(jobs).where(_is_held(lease)).values(lease_expires_at=later(lease_s)).returning(jobs.c.state)
        with self._database.write() as connection:
            check_schema_in(connection)
            state = connection.scalar(extended)
        if state is None:
            raise lease_lost(lease)
        return JobState(state)

    def append_results(
        self,
        lease: Lease,
        search_task_id: int,
        results: Sequence[MeasureResult],
        events: Sequence[NewEvent] = (),
        spent_s: float | None = None,
        summary: JsonObject | None = None,
    ) -> None:
        """Store results and events in one transaction, and set the task's spent time and the job's summary if given.

        A result whose (search task, kernel, instance, attempt) is stored already is left as it is: sending a batch
        twice doubles nothing, its events neither. Instances are in the task's shape variables. Raises LeaseLost, and
        InvalidInput on field ``shape`` for an instance of other variables.
        """
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            task = _task_of(connection, job.id, search_task_id)
            stored = insert_results(connection, task, results)
            count_records(connection, task.workload_id, task.target_id, stored)
            if spent_s is not None:
                connection.execute(_SPENT, {"of_task": search_task_id, "seconds": float(spent_s)})
            told = events if stored or not results else ()
            values = {"of_job": job.id, "stored": stored, "count": len(told), "progress": summary}
            last = connection.execute(_COUNTED if summary is None else _SUMMED, values).scalar_one()
            insert_events(connection, job.id, last, told)

    def save_baselines(self, lease: Lease, search_task_id: int, baselines: Baselines) -> None:
        """Store what the task's kernels are compared with, in place of earlier ones, and an event of it.

        The same ones again change nothing and append no event. Raises LeaseLost.
        """
        data = baselines.to_json()
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            task = find_task(connection, job.id, search_task_id)
            if task.baselines != data:
                changed = update(search_tasks).where(search_tasks.c.id == search_task_id).values(baselines=data)
                connection.execute(changed)
                facts = {"count": len(baselines.points), "search_task_id": search_task_id, "position": task.position}
                append_events(connection, job.id, [NewEvent("baselines", facts)])

    def append_events(self, lease: Lease, events: Sequence[NewEvent]) -> None:
        """Raises LeaseLost."""
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            append_events(connection, job.id, events)

    def finish_job(self, lease: Lease, state: JobState, error: str = "", summary: JsonObject | None = None) -> Job:
        """End the job (COMPLETED, CANCELLED or FAILED) and append the event of it. Raises LeaseLost."""
        if not state.ended:
            raise InvalidInput("state", f"{state} does not end a job", "COMPLETED, CANCELLED or FAILED")
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            values = {} if summary is None else {"summary": summary}
            return end(connection, job.id, state, error, **values)

    def release_job(self, lease: Lease) -> None:
        """Release an unfinished job: WAITING again (CANCELLED if it was CANCELLING). Raises LeaseLost."""
        with self._database.write() as connection:
            job = lock_leased(connection, lease, any_schema=True)
            if job.state is JobState.CANCELLING:
                end(connection, job.id, JobState.CANCELLED)
            else:
                set_state(connection, job.id, JobState.WAITING, {}, worker=None, lease_expires_at=None)

    def fail_attempt(self, lease: Lease, error: str) -> Job:
        """Release a job that could not be searched now, with the reason.

        WAITING again, after a while that grows with each attempt that fails; FAILED after MAX_ATTEMPTS in a row with no
        trial recorded in between; CANCELLED if it was CANCELLING. Raises LeaseLost.
        """
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            if job.state is JobState.CANCELLING:
                return end(connection, job.id, JobState.CANCELLED)
            return count_failure(connection, connection.execute(_ATTEMPTED, {"job": job.id}).one(), error)

    def end_abandoned(self) -> None:
        """End jobs that are being cancelled and whose worker was lost, whether there is another one or not."""
        with self._database.read() as connection:
            check_schema_in(connection)
            if not queue.any_abandoned(connection):
                return
        with self._database.write() as connection:
            _end_abandoned(connection)


def _task_of(connection: Connection, job_id: str, search_task_id: int) -> AnyRow:
    """What storing results needs of a search task, whose workload is locked. Raises NotFound.

    To be called after the job's lock is taken and before any row that several workloads share is locked.
    """
    row = connection.execute(_TASK, {"task": search_task_id, "job": job_id}).one_or_none()
    if row is None:
        raise no_task(job_id, search_task_id)
    return row


def _is_held(lease: Lease) -> ColumnElement[bool]:
    return and_(jobs.c.id == lease.job.id, jobs.c.epoch == lease.epoch, jobs.c.state.in_(WORKED_ON))


def _end_abandoned(connection: Connection) -> None:
    gone = select(jobs.c.id).where(ABANDONED).order_by(jobs.c.number)
    for job_id in connection.scalars(gone.with_for_update(skip_locked=True, key_share=True)).all():
        end(connection, job_id, JobState.CANCELLED)


def _check_readable(connection: Connection, job_id: str) -> None:
    """Raises CorruptData."""
    row = connection.execute(_CARRIED, {"job": job_id}).one()
    for column, value in row._mapping.items():
        with reading(f"the {column} of job {job_id}", value):
            continue


def _take(connection: Connection, job_id: str, worker: str, lease_s: float) -> Lease | None:
    """The lease of a waiting job, or of one whose worker was lost, unless that was one attempt too many.

    One that cannot be read fails: it would stop every worker.
    """
    row = connection.execute(_ATTEMPTED, {"job": job_id}).one()
    if row.state == JobState.RUNNING:
        job = count_failure(connection, row, f"worker {row.worker} was lost: it no longer extended its lease")
        if job.state.ended or job.failed_attempts > 1:
            return None  # the next attempt waits
    try:
        _check_readable(connection, job_id)
        tasks = tasks_of(connection, job_id)
    except CorruptData as error:
        end(connection, job_id, JobState.FAILED, str(error))
        return None
    number = update(jobs).where(jobs.c.id == job_id).values(epoch=jobs.c.epoch + 1).returning(jobs.c.epoch)
    epoch = connection.execute(number).scalar_one()
    job = set_state(
        connection,
        job_id,
        JobState.RUNNING,
        {"worker": worker, "epoch": epoch},
        worker=worker,
        error="",
        not_before=None,
        lease_expires_at=later(lease_s),
        started_at=func.coalesce(jobs.c.started_at, now()),
    )
    return Lease(job, tasks, worker, epoch)
