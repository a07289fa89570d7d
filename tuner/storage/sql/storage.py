"""The tuning database on SQLite or PostgreSQL: one class, put together from a file for each noun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from tuner.storage.jobs import JobState
from tuner.storage.sql.activity import Activities
from tuner.storage.sql.aliases import Aliases
from tuner.storage.sql.artifacts import Artifacts
from tuner.storage.sql.audit import Audit
from tuner.storage.sql.device_tokens import DeviceTokens
from tuner.storage.sql.devices import Devices
from tuner.storage.sql.engine import connect
from tuner.storage.sql.events import Events
from tuner.storage.sql.jobs import Jobs
from tuner.storage.sql.keys import Keys
from tuner.storage.sql.leases import Leases
from tuner.storage.sql.logins import Logins
from tuner.storage.sql.lookups import Lookups
from tuner.storage.sql.maintenance import StaleRecords
from tuner.storage.sql.migrate import check_schema
from tuner.storage.sql.pruning import Pruning
from tuner.storage.sql.pulse import Pulses
from tuner.storage.sql.records import Records
from tuner.storage.sql.schema import devices, jobs, tuning_records
from tuner.storage.sql.served import ServedLibraries
from tuner.storage.sql.sharing import Sharing
from tuner.storage.sql.trials import Trials
from tuner.storage.sql.webhooks import Webhooks
from tuner.storage.sql.workloads import Workloads


class SqlStorage(
    Jobs,
    Leases,
    Events,
    Records,
    Trials,
    Lookups,
    Workloads,
    Artifacts,
    ServedLibraries,
    Aliases,
    Devices,
    DeviceTokens,
    Activities,
    Keys,
    Logins,
    Audit,
    Webhooks,
    Sharing,
    Pulses,
    StaleRecords,
    Pruning,
):
    """Implements ``tuner.storage.Storage``, which documents the methods."""

    def check(self) -> None:
        check_schema(self._database)

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
