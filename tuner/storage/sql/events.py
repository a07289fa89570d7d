"""The events of a job, in the order of its commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from tuner.storage.events import JobEvent
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job, no_job
from tuner.storage.sql.schema import job_events, jobs


class Events(Part):
    def list_events(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.seq > cursors.position(after))
        query = query.order_by(job_events.c.seq).limit(cursors.checked(limit))
        with self._database.read() as connection:
            events = tuple(map(_event_of, connection.execute(query)))
            if not events:
                find_job(connection, job_id)
        return events

    def newest_events(self, job_id: str, kinds: Sequence[str], limit: int = 200) -> tuple[JobEvent, ...]:
        query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.kind.in_(kinds))
        query = query.order_by(job_events.c.seq.desc()).limit(cursors.checked(limit))
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tuple(map(_event_of, connection.execute(query)))[::-1]

    def last_event(self, job_id: str) -> int:
        with self._database.read() as connection:
            seq = connection.scalar(select(jobs.c.event_seq).where(jobs.c.id == job_id))
        if seq is None:
            raise no_job(job_id)
        return int(seq)


def _event_of(row: AnyRow) -> JobEvent:
    return JobEvent(job_id=row.job_id, seq=row.seq, kind=row.kind, data=row.data, created_at=row.created_at)
