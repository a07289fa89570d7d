"""The tuning database: the Storage protocols and what they exchange. ``tuner.storage.sql`` implements them."""

from tuner.storage._base import Storage
from tuner.storage.access import AccessStorage, ApiKey, NewKey, Quota, Scope
from tuner.storage.activity import ActiveJob, Activity, ActivityStorage, DeviceUse, Slot
from tuner.storage.audit import AuditEntry, AuditStorage
from tuner.storage.devices import QUARANTINE_AFTER, Device, DeviceReading, DeviceState, DeviceStorage
from tuner.storage.errors import (
    Conflict,
    CorruptData,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    StorageUnavailable,
)
from tuner.storage.events import CommitWatch, EventStorage, JobEvent, NewEvent
from tuner.storage.jobs import MAX_ATTEMPTS, Job, JobOrder, JobQuery, JobState, JobStorage, JobTable, SearchTaskRow
from tuner.storage.leases import Lease, LeaseStorage
from tuner.storage.libraries import (
    Action,
    Alias,
    AliasQuery,
    AliasStorage,
    Alternative,
    Artifact,
    Comparison,
    LibraryQuery,
    LibraryRow,
    LibraryStorage,
    Promotion,
    PromotionOrder,
    Served,
    Verdict,
)
from tuner.storage.lookups import (
    BuiltLibrary,
    KernelLatency,
    Known,
    LookupScope,
    LookupStorage,
    NamedTask,
    WorkloadForm,
)
from tuner.storage.maintenance import DevicePulse, MaintenanceStorage, Prunable, Pulse, Retention, StaleKnowledge
from tuner.storage.paging import Page
from tuner.storage.records import RecordStorage
from tuner.storage.sharing import Imported, SharingStorage
from tuner.storage.webhooks import Delivery, WebhookStorage
from tuner.storage.workloads import WorkloadRow, WorkloadStorage

__all__ = [
    "MAX_ATTEMPTS",
    "QUARANTINE_AFTER",
    "AccessStorage",
    "Action",
    "ActiveJob",
    "Activity",
    "ActivityStorage",
    "Alias",
    "AliasQuery",
    "AliasStorage",
    "Alternative",
    "ApiKey",
    "Artifact",
    "AuditEntry",
    "AuditStorage",
    "BuiltLibrary",
    "CommitWatch",
    "Comparison",
    "Conflict",
    "CorruptData",
    "Delivery",
    "Device",
    "DevicePulse",
    "DeviceReading",
    "DeviceState",
    "DeviceStorage",
    "DeviceUse",
    "EventStorage",
    "IdempotencyMismatch",
    "Imported",
    "Job",
    "JobEvent",
    "JobOrder",
    "JobQuery",
    "JobState",
    "JobStorage",
    "JobTable",
    "KernelLatency",
    "Known",
    "Lease",
    "LeaseLost",
    "LeaseStorage",
    "LibraryQuery",
    "LibraryRow",
    "LibraryStorage",
    "LookupScope",
    "LookupStorage",
    "MaintenanceStorage",
    "NamedTask",
    "NewEvent",
    "NewKey",
    "NotFound",
    "Page",
    "Promotion",
    "PromotionOrder",
    "Prunable",
    "Pulse",
    "Quota",
    "QuotaExceeded",
    "RecordStorage",
    "Retention",
    "Scope",
    "SearchTaskRow",
    "Served",
    "SharingStorage",
    "Slot",
    "StaleKnowledge",
    "Storage",
    "StorageUnavailable",
    "Verdict",
    "WebhookStorage",
    "WorkloadForm",
    "WorkloadRow",
    "WorkloadStorage",
]
