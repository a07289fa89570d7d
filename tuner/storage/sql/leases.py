"""Leasing a job, extending the lease, writing under it, releasing it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select, update

from tuner.errors import InvalidInput
from tuner.program.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.storage.events import NewEvent
from tuner.storage.jobs import Job, JobState
from tuner.storage.leases import Lease
from tuner.storage.sql._rows import (
    WORKED_ON,
    Part,
    append_events,
    end,
    lease_lost,
    lock_leased,
    set_state,
)
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.jobs import find_task, tasks_of
from tuner.storage.sql.records import insert_results
from tuner.storage.sql.schema import jobs, search_tasks


class Leases(Part):
    def lease_job(self, worker: str, lease_s: float, device_keys: Sequence[str] | None = None) -> Lease | None:
        leasable = _leasable(device_keys)
        # Workers poll, mostly in vain: read first, and write only if there is a job to lease.
        with self._database.read() as connection:
            if not connection.scalar(select(or_(exists().where(leasable), exists().where(_abandoned())))):
                return None
        with self._database.write() as connection:
            _end_abandoned(connection)
            job_id = connection.scalar(_first(leasable))
            return None if job_id is None else _take(connection, job_id, worker, lease_s)

    def heartbeat(self, lease: Lease, lease_s: float) -> JobState:
        extended = update(jobs).where(_is_held(lease)).values(lease_expires_at=later(lease_s)).returning(jobs.c.state)
        with self._database.write() as connection:
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
        """A batch of which every result is stored already is one sent twice: its events are not stored again."""
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            task = find_task(connection, job.id, search_task_id)
            stored = insert_results(connection, task, results)
            if stored or not results:
                append_events(connection, job.id, events)
            if spent_s is not None:
                spent = update(search_tasks).where(search_tasks.c.id == search_task_id).values(spent_s=float(spent_s))
                connection.execute(spent)
            values = {} if summary is None else {"summary": summary}
            connection.execute(update(jobs).where(jobs.c.id == job.id).values(trials=jobs.c.trials + stored, **values))

    def save_baselines(self, lease: Lease, search_task_id: int, baselines: Baselines) -> None:
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
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            append_events(connection, job.id, events)

    def finish_job(self, lease: Lease, state: JobState, error: str = "", summary: JsonObject | None = None) -> Job:
        if not state.ended:
            raise InvalidInput("state", f"{state} does not end a job", "COMPLETED, CANCELLED or FAILED")
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            values = {} if summary is None else {"summary": summary}
            return end(connection, job.id, state, error, **values)

    def release_job(self, lease: Lease) -> None:
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            if job.state is JobState.CANCELLING:
                end(connection, job.id, JobState.CANCELLED)
            else:
                set_state(connection, job.id, JobState.WAITING, {}, worker=None, lease_expires_at=None)


def _is_held(lease: Lease) -> ColumnElement[bool]:
    return and_(jobs.c.id == lease.job.id, jobs.c.epoch == lease.epoch, jobs.c.state.in_(WORKED_ON))


def _leasable(device_keys: Sequence[str] | None) -> ColumnElement[bool]:
    """Jobs that can be leased: waiting, or running under a lease that has expired by the database's clock."""
    expired = and_(jobs.c.state == JobState.RUNNING, jobs.c.lease_expires_at < now())
    leasable = or_(jobs.c.state == JobState.WAITING, expired)
    return leasable if device_keys is None else and_(leasable, jobs.c.device.in_(list(device_keys)))


def _abandoned() -> ColumnElement[bool]:
    """Jobs being cancelled whose lease has expired, for any device: the device may be gone too."""
    return and_(jobs.c.state == JobState.CANCELLING, jobs.c.lease_expires_at < now())


def _end_abandoned(connection: Connection) -> None:
    gone = select(jobs.c.id).where(_abandoned()).order_by(jobs.c.number)
    for job_id in connection.scalars(gone.with_for_update(skip_locked=True, key_share=True)).all():
        end(connection, job_id, JobState.CANCELLED)


def _first(leasable: ColumnElement[bool]) -> Select[str]:
    oldest = select(jobs.c.id).where(leasable).order_by(jobs.c.number).limit(1)
    return oldest.with_for_update(skip_locked=True, key_share=True)


def _take(connection: Connection, job_id: str, worker: str, lease_s: float) -> Lease:
    number = update(jobs).where(jobs.c.id == job_id).values(epoch=jobs.c.epoch + 1).returning(jobs.c.epoch)
    epoch = connection.execute(number).scalar_one()
    job = set_state(
        connection,
        job_id,
        JobState.RUNNING,
        {"worker": worker, "epoch": epoch},
        worker=worker,
        lease_expires_at=later(lease_s),
        started_at=func.coalesce(jobs.c.started_at, now()),
    )
    return Lease(job, tasks_of(connection, job_id), worker, epoch)
