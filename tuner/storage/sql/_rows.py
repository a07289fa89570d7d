"""What several nouns share: a job's row under its lock, its events, and rows that may be there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.program.workload import JsonObject
from tuner.storage.errors import LeaseLost, NotFound
from tuner.storage.events import NewEvent
from tuner.storage.jobs import Job, JobState
from tuner.storage.leases import Lease
from tuner.storage.sql.columns import now
from tuner.storage.sql.engine import Database
from tuner.storage.sql.schema import job_events, jobs

AnyRow = Row[Any]
WORKED_ON = (JobState.RUNNING, JobState.CANCELLING)


class Part:
    """One noun's share of SqlStorage."""

    def __init__(self, database: Database) -> None:
        self._database = database


def job_of(row: AnyRow) -> Job:
    return Job(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=JobState(row.state),
        device=row.device,
        spec=row.spec,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        epoch=row.epoch,
        worker=row.worker,
        trials=row.trials,
        error=row.error,
        summary=row.summary,
    )


def find_job(connection: Connection, job_id: str) -> Job:
    """Raises NotFound."""
    row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
    if row is None:
        raise no_job(job_id)
    return job_of(row)


def lock_job(connection: Connection, job_id: str) -> Job:
    """The job's row, locked until this transaction ends. Raises NotFound."""
    # SQLite knows no row locks and needs none: its writers come one at a time.
    query = select(jobs).where(jobs.c.id == job_id).with_for_update(key_share=True)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise no_job(job_id)
    return job_of(row)


def lock_leased(connection: Connection, lease: Lease) -> Job:
    """The locked row of a job that ``lease`` still holds. Raises LeaseLost.

    A lease that has expired is good until another worker takes the job: who is late but alone may go on.
    """
    job = lock_job(connection, lease.job.id)
    if job.epoch != lease.epoch or job.state not in WORKED_ON:
        raise lease_lost(lease)
    return job


def lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"job {lease.job.id}: epoch {lease.epoch} of {lease.worker} is over; stop working on it")


def no_job(job_id: str) -> NotFound:
    return NotFound(f"no job {job_id!r}")


def set_state(connection: Connection, job_id: str, state: JobState, event: JsonObject, **values: object) -> Job:
    """Move a locked job to ``state``, with further columns, and append the event of it."""
    changed = update(jobs).where(jobs.c.id == job_id).values(state=state.value, **values)
    connection.execute(changed)
    append_events(connection, job_id, [NewEvent("state", {"state": state.value, **event})])
    return find_job(connection, job_id)


def end(connection: Connection, job_id: str, state: JobState, error: str = "", **values: object) -> Job:
    """Move a locked job to a state that it does not leave by itself."""
    event = {"error": error} if error else {}
    return set_state(connection, job_id, state, event, error=error, ended_at=now(), lease_expires_at=None, **values)


def append_events(connection: Connection, job_id: str, events: Sequence[NewEvent]) -> None:
    """Number the events on from the job's last one. The update takes the row's lock if it is not held yet."""
    if not events:
        return
    count = len(events)
    numbered = update(jobs).where(jobs.c.id == job_id).values(event_seq=jobs.c.event_seq + count)
    last = connection.execute(numbered.returning(jobs.c.event_seq)).scalar_one()
    rows = [
        {"job_id": job_id, "seq": last - count + index, "kind": event.kind, "data": event.data}
        for index, event in enumerate(events, start=1)
    ]
    connection.execute(insert(job_events), rows)


def insert_new(connection: Connection, table: Table, rows: Sequence[JsonObject]) -> int:
    """Insert the rows that break no unique constraint, in one statement or a few; how many those were.

    Callers that name rows which other transactions insert too give them sorted: taken in one order, two
    transactions wait for each other in turn and never both ways.
    """
    if not rows:
        return 0
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = make(table).on_conflict_do_nothing().returning(next(iter(table.primary_key)))
    return len(connection.execute(statement, list(rows)).all())
