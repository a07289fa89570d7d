"""The events of a job, in the order of its commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select

from tuner.storage.errors import StorageUnavailable
from tuner.storage.jobs import JobEvent
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job
from tuner.storage.sql.engine import Database
from tuner.storage.sql.schema import job_events, jobs

AT_ONCE = 500
"""Jobs in one statement: SQLite takes some thousands of parameters."""

# Built once: composing a statement takes longer than running it.
_event = job_events.c
_AFTER = (
    select(job_events)
    .where(_event.job_id == bindparam("job_id"), _event.seq > bindparam("after"))
    .order_by(_event.seq)
    .limit(bindparam("count"))
)
_NEWEST = (
    select(job_events)
    .where(_event.job_id == bindparam("job_id"), _event.kind.in_(bindparam("kinds", expanding=True)))
    .order_by(_event.seq.desc())
    .limit(bindparam("count"))
)
_LAST = select(jobs.c.id, jobs.c.event_seq).where(jobs.c.id.in_(bindparam("job_ids", expanding=True)))


class Events(Part):
    def list_events(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        """Events with seq above ``after``, in order. Raises NotFound."""
        asked = {"job_id": job_id, "after": cursors.position(after), "count": cursors.checked(limit)}
        with self._database.read() as connection:
            events = tuple(map(_event_of, connection.execute(_AFTER, asked)))
            if not events:
                find_job(connection, job_id)
        return events

    def newest_events(self, job_id: str, kinds: Sequence[str], limit: int = 200) -> tuple[JobEvent, ...]:
        """The last events of these kinds, in order. Raises NotFound."""
        asked = {"job_id": job_id, "kinds": list(kinds), "count": cursors.checked(limit)}
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tuple(map(_event_of, connection.execute(_NEWEST, asked)))[::-1]

    def last_events(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """The seq of the newest event of each of these jobs; jobs that do not exist are left out."""
        result: dict[str, int] = {}
        with self._database.read() as connection:
            for start in range(0, len(job_ids), AT_ONCE):
                asked = {"job_ids": list(job_ids[start : start + AT_ONCE])}
                result.update((row.id, int(row.event_seq)) for row in connection.execute(_LAST, asked))
        return result

    def watch_commits(self) -> CommitWatch:
        """Polled often by whoever waits for events, who calls ``last_events`` only when it says so."""
        return CommitWatch(self._database)


def _event_of(row: AnyRow) -> JobEvent:
    return JobEvent(job_id=row.job_id, seq=row.seq, kind=row.kind, data=row.data, created_at=row.created_at)


# SQLite counts the commits of other connections. PostgreSQL's snapshot names the transactions that are visible: it is
# the same only while none has ended. Neither reads a table.
QUESTIONS = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_snapshot()::text"}


class CommitWatch:
    """Tells at next to no cost whether there can be anything new. For one thread.

    It holds one connection of its own, outside of the pool and any transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._question = QUESTIONS[database.engine.dialect.name]
        self._connection: Any = None
        self._seen: object = None

    def changed(self) -> bool:
        """Whether anything was committed since the last call, by anyone; true at the first. Raises StorageUnavailable,
        and is true at the call after it."""
        try:
            with self._database.translated():
                result = self._ask()
        except StorageUnavailable:
            self.close()
            raise
        before, self._seen = self._seen, result
        return result != before

    def close(self) -> None:
        """Give the connection back. It may be used again afterwards."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()

    def _ask(self) -> object:
        if self._connection is None:
            # Detached: it stays open as long as anyone waits, and must not be one of the few that requests share.
            connection: Any = self._database.engine.connect()
            connection.detach()
            self._connection = connection
            if connection.dialect.name == "postgresql":
                connection.connection.dbapi_connection.autocommit = True
        # The driver's own cursor: a transaction of SQLAlchemy's would see the same for as long as it lasts.
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(self._question)
            return cursor.fetchone()[0]
        except self._database.engine.dialect.loaded_dbapi.Error as error:
            raise StorageUnavailable(f"database {self._database.engine.url}: {error}") from error
        finally:
            cursor.close()
