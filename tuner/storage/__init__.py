"""The tuning database: the Storage protocols and what they exchange. ``tuner.storage.sql`` implements them."""

from tuner.storage._base import Storage
from tuner.storage.access import AccessStorage, ApiKey
from tuner.storage.devices import Device, DeviceReading, DeviceStorage
from tuner.storage.errors import Conflict, IdempotencyMismatch, LeaseLost, NotFound, StorageUnavailable
from tuner.storage.events import EventStorage, JobEvent, NewEvent
from tuner.storage.jobs import Job, JobOrder, JobQuery, JobState, JobStorage, JobTable, SearchTaskRow
from tuner.storage.leases import Lease, LeaseStorage
from tuner.storage.libraries import Artifact, LibraryStorage
from tuner.storage.paging import Page
from tuner.storage.records import RecordStorage
from tuner.storage.workloads import WorkloadRow, WorkloadStorage

__all__ = [
    "AccessStorage",
    "ApiKey",
    "Artifact",
    "Conflict",
    "Device",
    "DeviceReading",
    "DeviceStorage",
    "EventStorage",
    "IdempotencyMismatch",
    "Job",
    "JobEvent",
    "JobOrder",
    "JobQuery",
    "JobState",
    "JobStorage",
    "JobTable",
    "Lease",
    "LeaseLost",
    "LeaseStorage",
    "LibraryStorage",
    "NewEvent",
    "NotFound",
    "Page",
    "RecordStorage",
    "SearchTaskRow",
    "Storage",
    "StorageUnavailable",
    "WorkloadRow",
    "WorkloadStorage",
]
