"""The tuning database: the Storage protocol and what it exchanges. ``tuner.storage.sql`` implements it."""

from tuner.storage._base import (
    ApiKey,
    Artifact,
    Conflict,
    Device,
    DeviceReading,
    IdempotencyMismatch,
    Job,
    JobEvent,
    JobOrder,
    JobQuery,
    JobState,
    JobTable,
    Lease,
    LeaseLost,
    NewEvent,
    NotFound,
    Page,
    SearchTaskRow,
    Storage,
    StorageUnavailable,
    WorkloadRow,
)

__all__ = [
    "ApiKey", "Artifact", "Conflict", "Device", "DeviceReading", "IdempotencyMismatch", "Job", "JobEvent", "JobOrder",
    "JobQuery", "JobState", "JobTable", "Lease", "LeaseLost", "NewEvent", "NotFound", "Page", "SearchTaskRow",
    "Storage", "StorageUnavailable", "WorkloadRow",
]
