"""The events of a job, in the order of its commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, select

from tuner.storage.events import JobEvent
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job, no_job
from tuner.storage.sql.schema import job_events, jobs
from tuner.storage.sql.watching import Watch

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
        asked = {"job_id": job_id, "after": cursors.position(after), "count": cursors.checked(limit)}
        with self._database.read() as connection:
            events = tuple(map(_event_of, connection.execute(_AFTER, asked)))
            if not events:
                find_job(connection, job_id)
        return events

    def newest_events(self, job_id: str, kinds: Sequence[str], limit: int = 200) -> tuple[JobEvent, ...]:
        asked = {"job_id": job_id, "kinds": list(kinds), "count": cursors.checked(limit)}
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tuple(map(_event_of, connection.execute(_NEWEST, asked)))[::-1]

    def last_event(self, job_id: str) -> int:
        result = self.last_events([job_id])
        if job_id not in result:
            raise no_job(job_id)
        return result[job_id]

    def last_events(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        result: dict[str, int] = {}
        with self._database.read() as connection:
            for start in range(0, len(job_ids), AT_ONCE):
                asked = {"job_ids": list(job_ids[start : start + AT_ONCE])}
                result.update((row.id, int(row.event_seq)) for row in connection.execute(_LAST, asked))
        return result

    def watch_commits(self) -> Watch:
        return Watch(self._database)


def _event_of(row: AnyRow) -> JobEvent:
    return JobEvent(job_id=row.job_id, seq=row.seq, kind=row.kind, data=row.data, created_at=row.created_at)
