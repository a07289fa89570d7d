"""The tuning database on SQLite or PostgreSQL, in four roles: code takes the one whose methods it calls.

Anyone may create a job, ask for its cancellation or its resumption; everything else about a job changes only through a
``Lease``, and a lease that has been lost (its epoch is no longer the job's) raises ``LeaseLost`` and writes nothing.
Every method is one transaction: all of it happens or nothing. All times are the database's own clock, in UTC, ISO 8601.
Methods take and give the values of ``tuner.storage``, nothing of SQLAlchemy's. Safe to use from several threads and
processes at once.
"""

from __future__ import annotations

from tuner.storage.sql.activity import Activities
from tuner.storage.sql.aliases import Aliases
from tuner.storage.sql.artifacts import Artifacts, NewLibraries
from tuner.storage.sql.audit import Audit
from tuner.storage.sql.device_tokens import DeviceTokens
from tuner.storage.sql.devices import Devices
from tuner.storage.sql.engine import connect
from tuner.storage.sql.events import Events
from tuner.storage.sql.found_records import FoundRecords
from tuner.storage.sql.jobs import Jobs
from tuner.storage.sql.keys import Keys, Logins
from tuner.storage.sql.leases import Leases
from tuner.storage.sql.lookups import Lookups
from tuner.storage.sql.maintenance import StaleRecords
from tuner.storage.sql.migrate import check_schema
from tuner.storage.sql.notes import Notes
from tuner.storage.sql.pruning import Pruning
from tuner.storage.sql.pulse import Pulses
from tuner.storage.sql.records import Records
from tuner.storage.sql.search_tasks import SearchTasks
from tuner.storage.sql.served import ServedLibraries
from tuner.storage.sql.sharing import Sharing
from tuner.storage.sql.task_results import FigureResults
from tuner.storage.sql.trial_table import TrialTables
from tuner.storage.sql.trials import Trials
from tuner.storage.sql.webhooks import Webhooks
from tuner.storage.sql.workloads import Workloads


class ClientStorage(
    Jobs,
    Notes,
    Events,
    SearchTasks,
    Records,
    FoundRecords,
    FigureResults,
    Trials,
    TrialTables,
    Workloads,
    Lookups,
    Artifacts,
    ServedLibraries,
    Aliases,
):
    """What clients ask: jobs and how they go, what is known of workloads, libraries and their names."""


class WorkerStorage(Leases, SearchTasks, Records, Artifacts, NewLibraries, ServedLibraries):
    """What a search reads, and writes under its lease."""


class DeviceStorage(Devices, DeviceTokens, Activities):
    """Devices: how they join, how they fare, and what they do."""


class OperatorStorage(Keys, Logins, Audit, Webhooks, Sharing, Pulses, StaleRecords, Pruning):
    """Running the service: keys, the audit trail, webhooks, exchanged records, figures, retention."""


class Storage(ClientStorage, WorkerStorage, DeviceStorage, OperatorStorage):
    """The tuning database in all roles."""

    def check(self) -> None:
        """Raise StorageUnavailable unless the database answers and its schema is the one this code wants."""
        check_schema(self._database)

    def close(self) -> None:
        """Give back every connection."""
        self._database.engine.dispose()


def open_storage(url: str) -> Storage:
    """The tuning database at ``sqlite:///path`` or ``postgresql://...``. It is reached only when it is first used.

    Raises InvalidInput on field ``database_url``.
    """
    return Storage(connect(url))
