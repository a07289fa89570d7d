"""The tuning database on SQLite or PostgreSQL: one class, put together from a file for each noun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from tuner.storage.errors import StorageUnavailable
from tuner.storage.jobs import JobState
from tuner.storage.sql.artifacts import Artifacts
from tuner.storage.sql.devices import Devices
from tuner.storage.sql.engine import UPGRADE, connect
from tuner.storage.sql.events import Events
from tuner.storage.sql.jobs import Jobs
from tuner.storage.sql.keys import Keys
from tuner.storage.sql.leases import Leases
from tuner.storage.sql.logins import Logins
from tuner.storage.sql.migrate import current, head
from tuner.storage.sql.records import Records
from tuner.storage.sql.schema import devices, jobs, tuning_records
from tuner.storage.sql.workloads import Workloads


class SqlStorage(Jobs, Leases, Events, Records, Workloads, Artifacts, Devices, Keys, Logins):
    """Implements ``tuner.storage.Storage``, which documents the methods."""

    def check(self) -> None:
        revision, wanted = current(self._database), head()
        if revision != wanted:
            raise StorageUnavailable(
                f"database {self._database.engine.url}: its schema is {revision or 'empty'}, not {wanted}; {UPGRADE}"
            )

    def close(self) -> None:
        self._database.engine.dispose()

    def job_counts(self) -> Mapping[str, int]:
        query = select(jobs.c.state, func.count().label("jobs"), func.sum(jobs.c.trials).label("trials"))
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(jobs.c.state)).all()
        by_state = {state.value: 0 for state in JobState} | {row.state: row.jobs for row in rows}
        return by_state | {"trials": sum(int(row.trials) for row in rows)}

    def counts(self) -> Mapping[str, Any]:
        """``{"jobs": {state: number}, "records": ..., "events": ..., "devices": ...}``"""
        by_state = select(jobs.c.state, func.count().label("jobs"), func.sum(jobs.c.event_seq).label("events"))
        with self._database.read() as connection:
            rows = connection.execute(by_state.group_by(jobs.c.state)).all()
            records = connection.scalar(select(func.count()).select_from(tuning_records))
            registered = connection.scalar(select(func.count()).select_from(devices))
        return {
            "jobs": {state.value: 0 for state in JobState} | {row.state: row.jobs for row in rows},
            "records": records,
            "events": sum(int(row.events) for row in rows),
            "devices": registered,
        }


def open_storage(url: str) -> SqlStorage:
    """The tuning database at ``sqlite:///path`` or ``postgresql://...``. It is reached only when it is first used.

    Raises InvalidInput on field ``database_url``.
    """
    return SqlStorage(connect(url))
