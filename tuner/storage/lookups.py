"""What is known of a workload at a shape: the answer to "what is best here?" is made of this.

Every method answers many questions at once, in the order in which they are asked: a lookup is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.schedule.space import MicroKernel
from tuner.storage.libraries import Comparison


@dataclass(frozen=True, slots=True)
class LookupScope:
    """The bounds of a lookup: a workload, a target and a number of threads.

    ``job_id``: only what this job measured and built. Without a target, ``newest_tasks`` alone knows what is meant.
    """

    workload_key: str
    target_fingerprint: str | None
    threads: int = 1
    job_id: str | None = None


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


class LookupStorage(Protocol):
    """Reading what lookups need. Latencies are compared within one scope and the protocol of this version alone."""

    def one_view(self) -> AbstractContextManager[None]:
        """Whatever this thread reads inside is read on one connection; from SQLite as it was at one moment."""

    def look_up(self, asked: Sequence[tuple[LookupScope, str]]) -> tuple[Known, ...]:
        """What there is at each (scope, instance), the instance as ``format_shape`` writes the symbols' values.

        The best kernel is the one with the least latency, of a rule version that this code has, that was never found
        wrong and never crashed at any instance of the workload on this target.
        """

    def best_kernels(self, asked: Sequence[tuple[LookupScope, str]]) -> tuple[KernelLatency | None, ...]:
        """The best kernel at each (scope, instance) as of ``look_up``, without the libraries."""

    def latencies(self, asked: Sequence[tuple[LookupScope, str, str]]) -> tuple[KernelLatency | None, ...]:
        """What is known of each (scope, instance, kernel id); None where it was not measured. Of any job."""

    def measured_instances(self, scopes: Sequence[LookupScope]) -> tuple[tuple[str, ...], ...]:
        """The instances of each scope at which any kernel was measured by any job; 20,000 of all scopes at most."""

    def newest_tasks(self, scopes: Sequence[LookupScope]) -> tuple[NamedTask | None, ...]:
        """The search task that built the newest library of each scope or, without any, the newest search task.

        Of any target where a scope has none. None where there is no search task.
        """

    def tasks(self, numbers: Sequence[int]) -> Mapping[int, SearchTask]:
        """Search tasks by the numbers of their rows."""

    def dispatch_tables(self, numbers: Sequence[int]) -> Mapping[int, JsonObject]:
        """The dispatch tables of libraries, by the numbers of their rows."""

    def kernels(self, ids: Sequence[str]) -> Mapping[str, MicroKernel]:
        """Micro-kernels by their ids."""

    def workload_forms(self, keys: Sequence[str]) -> Mapping[str, WorkloadForm]:
        """Workloads by their keys; those that no job was submitted for are left out."""

    def workloads_like(self, program: str, limit: int) -> tuple[WorkloadForm, ...]:
        """The newest workloads with this ``program_key``, whatever their extents."""
