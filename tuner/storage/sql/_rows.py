"""What several nouns share: a job's row under its lock, its events, and rows that may be there already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Dialect, Executable, Row, Table, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.program.language.workload import JsonObject
from tuner.storage.errors import CorruptData, LeaseLost, NotFound
from tuner.storage.jobs import Job, JobState, Lease, NewEvent
from tuner.storage.sql.columns import now
from tuner.storage.sql.engine import Database
from tuner.storage.sql.migrate import REVISION, refuse_other
from tuner.storage.sql.schema import job_events, jobs
from tuner.storage.sql.webhook_outbox import announce

AnyRow = Row[Any]
T = TypeVar("T")
_log = logging.getLogger(__name__)
WORKED_ON = (JobState.RUNNING, JobState.CANCELLING)

# Built once: composing a statement takes longer than running it. SQLite knows no row locks and needs none: its writers
# come one at a time.
_JOB = select(jobs).where(jobs.c.id == bindparam("job_id"))
_LOCKED = _JOB.with_for_update(key_share=True)
_LEASED = (
    select(jobs.c.epoch, jobs.c.state, REVISION.label("revision"))
    .where(jobs.c.id == bindparam("job_id"))
    .with_for_update(key_share=True, of=jobs)
)
_NUMBERED = (
    update(jobs)
    .where(jobs.c.id == bindparam("of_job"))
    .values(event_seq=jobs.c.event_seq + bindparam("count"))
    .returning(jobs.c.event_seq)
)
_EVENTS = insert(job_events)


class Part:
    """One noun's share of the storage."""

    def __init__(self, database: Database) -> None:
        self._database = database


def readable(what: str, make: Callable[[AnyRow], T], rows: Iterable[Any]) -> Iterator[T]:
    """What ``make`` makes of each row. One that is corrupt is left out, with an error in the log: it must not keep the
    others from a caller that reads all."""
    for row in rows:
        try:
            yield make(row)
        except CorruptData as error:
            _log.error("%s %s is left out: %s", what, row.id, error)


def job_of(row: AnyRow, whole: bool = True) -> Job:
    return Job(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=JobState(row.state),
        device=row.device,
        spec=row.spec if whole else {},
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        epoch=row.epoch,
        worker=row.worker,
        trials=row.trials,
        error=row.error,
        summary=row.summary if whole else {},
        priority=row.priority,
        failed_attempts=row.failed_attempts,
        not_before=row.not_before,
        tags=tuple(filter(None, row.tags.split(","))),
        note=row.note,
    )


def find_job(connection: Connection, job_id: str) -> Job:
    """Raises NotFound."""
    row = connection.execute(_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise no_job(job_id)
    return job_of(row)


def lock_job(connection: Connection, job_id: str) -> Job:
    """The job's row, locked until this transaction ends. Raises NotFound."""
    row = connection.execute(_LOCKED, {"job_id": job_id}).one_or_none()
    if row is None:
        raise no_job(job_id)
    return job_of(row)


@dataclass(frozen=True, slots=True)
class LeasedRow:
    """The locked row of a leased job."""

    id: str
    state: JobState


def lock_leased(connection: Connection, lease: Lease, *, any_schema: bool = False) -> LeasedRow:
    """Lock the row of a job that ``lease`` still holds. Raises LeaseLost, NotFound.

    A lease that has expired is good until another worker takes the job: who is late but alone may go on. Only what
    decides that is read: what was submitted may be large, and this comes before every batch of results. Raises
    StorageUnavailable, unless ``any_schema``, if the database was upgraded under a worker of an earlier version.
    """
    row = connection.execute(_LEASED, {"job_id": lease.job.id}).one_or_none()
    if row is None:
        raise no_job(lease.job.id)
    if row.epoch != lease.epoch or row.state not in WORKED_ON:
        raise lease_lost(lease)
    if not any_schema:
        refuse_other(row.revision, connection.engine.url)
    return LeasedRow(lease.job.id, JobState(row.state))


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
    values |= {"error": error, "ended_at": now(), "lease_expires_at": None}
    job = set_state(connection, job_id, state, event, **values)
    announce(connection, job)
    return job


def append_events(connection: Connection, job_id: str, events: Sequence[NewEvent]) -> None:
    """Number the events on from the job's last one. The update takes the row's lock if it is not held yet."""
    if events:
        last = connection.execute(_NUMBERED, {"of_job": job_id, "count": len(events)}).scalar_one()
        insert_events(connection, job_id, last, events)


def insert_events(connection: Connection, job_id: str, last: int, events: Sequence[NewEvent]) -> None:
    """Insert events whose last one has the number ``last``, which the job's row says already."""
    first = last - len(events) + 1
    rows = [
        {"job_id": job_id, "seq": seq, "kind": event.kind, "data": event.data}
        for seq, event in enumerate(events, start=first)
    ]
    if rows:
        connection.execute(_EVENTS, rows)


def insert_new(connection: Connection, table: Table, rows: Sequence[JsonObject]) -> int:
    """Insert the rows that break no unique constraint; how many those were.

    Callers that name rows which other transactions insert too give them sorted: taken in one order, two
    transactions wait for each other in turn and never both ways.
    """
    if not rows:
        return 0
    insertion = _insertion(connection.dialect, table, tuple(rows[0]))
    return insertion(connection, rows)


def insert_returning(
    connection: Connection, table: Table, rows: Sequence[JsonObject], columns: Sequence[Column[Any]]
) -> Sequence[AnyRow]:
    """Insert rows as ``insert_new`` does; these columns of the rows that were inserted, in any order."""
    if not rows:
        return ()
    return connection.execute(_returning(connection.dialect.name, table, tuple(columns)), list(rows)).all()


@lru_cache(maxsize=256)
def _returning(dialect: str, table: Table, columns: tuple[Column[Any], ...]) -> Executable:
    statement: Executable = _making(dialect)(table).on_conflict_do_nothing().returning(*columns)
    return statement


def _making(dialect: str) -> Any:
    return sqlite.insert if dialect == "sqlite" else postgresql.insert


class _Insertion:
    """An insertion of rows of the same columns, compiled once: SQLAlchemy's own takes most of its time to turn each row
    into the driver's form, in ways that fit every statement."""

    def __init__(self, dialect: Dialect, table: Table, names: Sequence[str]) -> None:
        # Without RETURNING the driver sends all rows by one prepared statement, and counts what they added.
        inserting = _making(dialect.name)(table).inline().on_conflict_do_nothing()
        self._statement = inserting.execution_options(preserve_rowcount=True)
        compiled = self._statement.compile(dialect=dialect, column_keys=list(names))
        self._text = str(compiled)
        self._by_position = compiled.positiontup
        self._has_defaults = bool(compiled.insert_prefetch)
        self._processors = tuple(
            (name, table.c[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in self._by_position or names
        )

    def __call__(self, connection: Connection, rows: Sequence[JsonObject]) -> int:
        if self._has_defaults:
            # Values that Python makes for each row.
            return int(connection.execute(self._statement, list(rows)).rowcount)
        driver_rows = [
            [process(row[name]) if process else row[name] for name, process in self._processors] for row in rows
        ]
        sent: Any
        if self._by_position:
            sent = [tuple(values) for values in driver_rows]
        else:
            names = [name for name, _ in self._processors]
            sent = [dict(zip(names, values, strict=True)) for values in driver_rows]
        keeping = {"preserve_rowcount": True}
        return int(connection.exec_driver_sql(self._text, sent, execution_options=keeping).rowcount)


@lru_cache(maxsize=256)
def _insertion(dialect: Dialect, table: Table, names: tuple[str, ...]) -> _Insertion:
    return _Insertion(dialect, table, names)
