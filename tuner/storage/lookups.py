"""What is known of workloads: the answer to "what is best here?" is made of this."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.storage.libraries import Comparison


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """A workload that some job has been submitted for, with how much is known about it.

    ``workload`` is its canonical form, which ``workload_from_json`` reads; ``label`` is what the first job called it.
    """

    key: str
    workload: JsonObject
    label: str
    created_at: str
    jobs: int
    records: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Which records are listed, as far as these are given. ``failed``: those with an error, or those without."""

    workload_key: str | None = None
    target_fingerprint: str | None = None
    failed: bool | None = None
    provenance: str | None = None
    device: str | None = None
    kernel_id: str | None = None


@dataclass(frozen=True, slots=True)
class LookupScope:
    """The bounds of a lookup: a workload, a target, a number of threads and a state of the caches.

    ``job_id``: only what this job measured and built. Without a target, ``newest_tasks`` alone knows what is meant.
    """

    workload_key: str
    target_fingerprint: str | None
    threads: int = 1
    job_id: str | None = None
    cache: Cache = Cache.WARM


@dataclass(frozen=True, slots=True)
class KernelLatency:
    """What is known of a kernel at an instance: the median of its readings at one speed, by the protocol of today.

    ``job_id`` is the job of the newest reading; None for one that no job of this database made.
    """

    kernel_id: str
    instance: str
    latency_s: float
    readings: int
    job_id: str | None


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """A library by the number of its row and its digest, and the job that built it.

    ``is_comparable``: its kernels were measured by the protocol of today. ``comparison``: with the library that was
    served when it was built.
    """

    number: int
    digest: str
    job_id: str
    is_comparable: bool = True
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What there is for one instance of a scope: the best kernel, and libraries to choose from, newest first."""

    best: KernelLatency | None
    libraries: tuple[BuiltLibrary, ...]


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A search task by the number of its row, with its target."""

    number: int
    target_fingerprint: str


@dataclass(frozen=True, slots=True)
class WorkloadForm:
    """A workload's key and its canonical form, as ``workload_from_json`` reads it."""

    key: str
    workload: JsonObject
