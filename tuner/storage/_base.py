"""The Storage protocol: what the tuning database does for the service, the workers and the command line.

It is composed of one protocol for each kind of thing that is stored; code takes the narrowest one that it needs. One
synchronous interface, implemented in SQL, which no caller sees. Who may change what: anyone may create a
job, ask for its cancellation or its resumption; everything else about a job changes only through a ``Lease``, and a
lease that has been lost (its epoch is no longer the job's) raises ``LeaseLost`` and writes nothing. Every method is
one transaction: all of it happens or nothing. All times are the database's own clock, in UTC, ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tuner.storage.access import AccessStorage
from tuner.storage.activity import ActivityStorage
from tuner.storage.audit import AuditStorage
from tuner.storage.device_tokens import DeviceTokenStorage
from tuner.storage.devices import DeviceStorage
from tuner.storage.jobs import JobStorage
from tuner.storage.leases import LeaseStorage
from tuner.storage.libraries import LibraryStorage
from tuner.storage.lookups import LookupStorage
from tuner.storage.maintenance import MaintenanceStorage
from tuner.storage.records import RecordStorage
from tuner.storage.sharing import SharingStorage
from tuner.storage.webhooks import WebhookStorage
from tuner.storage.workloads import WorkloadStorage


class Storage(
    JobStorage,
    LeaseStorage,
    RecordStorage,
    LookupStorage,
    WorkloadStorage,
    LibraryStorage,
    DeviceStorage,
    DeviceTokenStorage,
    ActivityStorage,
    AccessStorage,
    AuditStorage,
    WebhookStorage,
    SharingStorage,
    MaintenanceStorage,
    Protocol,
):
    """The tuning database. Safe to use from several threads and processes at once."""

    def check(self) -> None:
        """Raise StorageUnavailable unless the database answers and its schema is the one this code wants."""

    def close(self) -> None:
        """Give back every connection."""

    def counts(self) -> Mapping[str, Any]:
        """Numbers for /metrics: jobs by state, records, events, devices."""
