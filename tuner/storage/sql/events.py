"""The events of a job, in the order of its commits."""

from __future__ import annotations

from sqlalchemy import select

from tuner.storage._base import JobEvent
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job
from tuner.storage.sql.schema import job_events


class Events(Part):
    def list_events(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.seq > cursors.position(after))
        query = query.order_by(job_events.c.seq).limit(cursors.checked(limit))
        with self._database.read() as connection:
            found = tuple(map(_event_of, connection.execute(query)))
            if not found:
                find_job(connection, job_id)
        return found


def _event_of(row: AnyRow) -> JobEvent:
    return JobEvent(job_id=row.job_id, seq=row.seq, kind=row.kind, data=row.data, created_at=row.created_at)
