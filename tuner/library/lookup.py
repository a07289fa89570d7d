"""The answer to "what is best for this shape?", and how it was found. No compiler needed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from operator import sub
from types import MappingProxyType
from typing import Protocol

import numpy as np

from tuner.errors import InvalidInput
from tuner.program.job.cache import Cache
from tuner.program.job.instances import parse_shape
from tuner.program.job.task import SearchTask, check_shape
from tuner.program.language.workload import JsonObject
from tuner.schedule.registry import estimate_s
from tuner.schedule.space import MicroKernel


class Match(StrEnum):
    """How a lookup matched: measured at this very shape; chosen by the dispatcher; the kernel of the nearest measured
    shape; the default that is right everywhere."""

    EXACT = "exact"
    DISPATCHED = "dispatched"
    NEAREST = "nearest"
    DEFAULT = "default"

    @property
    def rank(self) -> int:
        """The lower the more is known."""
        return list(Match).index(self)


class LookedUpIn(Protocol):
    """Where a lookup was made: what it never crosses."""

    @property
    def workload_key(self) -> str: ...

    @property
    def target_fingerprint(self) -> str | None: ...

    @property
    def threads(self) -> int: ...

    @property
    def cache(self) -> Cache: ...


@dataclass(frozen=True, slots=True)
class BestAnswer:
    """A kernel for a shape, which the values of the workload's symbols give. Kernels are in public form
    (``kernel_json``), latencies in seconds; None where nothing is known.

    ``latency_s`` was measured at this very shape: the median of ``readings`` readings. ``predicted_latency_s`` is of
    the same kernel, or None. ``job_id`` is the job that measured it or built the library that answers; ``digest`` names
    the library that was consulted, ``served_by`` is what that one runs here, ``served_latency_s`` what was measured of
    that and ``served_predicted_latency_s`` what its table predicts: the best kernel may be one that the library does
    not have, and figures of two kernels are never one beside the other. ``measured_shape`` is where the kernel
    was measured, ``distance`` how far from there the shape is along each symbol (``axis_distances``).
    """

    scope: LookedUpIn
    shape: Mapping[str, int]
    match: Match
    kernel: JsonObject
    latency_s: float | None = None
    predicted_latency_s: float | None = None
    job_id: str | None = None
    digest: str | None = None
    served_by: JsonObject | None = None
    readings: int = 0
    measured_shape: Mapping[str, int] | None = None
    distance: Mapping[str, float] | None = None
    served_latency_s: float | None = None
    served_predicted_latency_s: float | None = None
    asked_key: str | None = None
    """The static workload that was asked for, where this one stands for it at ``shape``."""

    def to_json(self) -> JsonObject:
        return {
            "workload_key": self.scope.workload_key,
            "target_fingerprint": self.scope.target_fingerprint,
            "threads": self.scope.threads,
            "cache": self.scope.cache.value,
            "shape": dict(self.shape),
            "match": self.match.value,
            "kernel": self.kernel,
            "latency_s": self.latency_s,
            "predicted_latency_s": self.predicted_latency_s,
            "job_id": self.job_id,
            "digest": self.digest,
            "served_by": self.served_by,
            "served_latency_s": self.served_latency_s,
            "served_predicted_latency_s": self.served_predicted_latency_s,
            "readings": self.readings,
            "measured_shape": None if self.measured_shape is None else dict(self.measured_shape),
            "distance": None if self.distance is None else dict(self.distance),
            "asked_key": self.asked_key,
        }


def dims_of(task: SearchTask, shape: Mapping[str, int]) -> dict[str, int]:
    """The values of the symbols of the task's workload at ``shape``, which gives just those or the task's variables.

    Raises InvalidInput on field ``shape``.
    """
    if set(shape) == set(task.workload.symbols):
        return {name: shape[name] for name in task.workload.symbols}
    check_shape(task, shape)
    return task.workload.dims(shape)


@lru_cache(maxsize=65_536)
def instance_dims(instance: str) -> Mapping[str, int]:
    """``m=592,n=8`` as the values of the symbols; empty for what is no instance."""
    try:
        return MappingProxyType(parse_shape(instance))
    except InvalidInput:
        return MappingProxyType({})


def nearest(instances: Iterable[str], dims: Mapping[str, int], most: int) -> list[str]:
    """The instances that are nearest to ``dims`` in the logarithms of the symbols (``log_distance``), the nearest
    first. Those of other symbols are left out."""
    names = tuple(sorted(dims))
    here = _logs(dims, names)
    result = []
    for instance in instances:
        own, logs = _instance_logs(instance)
        if own == names:
            result.append((sum(map(abs, map(sub, logs, here))), instance))
    return [instance for _, instance in heapq.nsmallest(most, result)]


@lru_cache(maxsize=65_536)
def _instance_logs(instance: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    dims = instance_dims(instance)
    names = tuple(sorted(dims))
    return names, _logs(dims, names)


def _logs(dims: Mapping[str, int], names: Sequence[str]) -> tuple[float, ...]:
    return tuple(math.log(max(dims[name], 0) + 1) for name in names)


def axis_distances(dims: Mapping[str, int], measured: Mapping[str, int]) -> dict[str, float]:
    """Along each symbol log((size + 1) / (measured size + 1)): 0 where they are equal, 0.69 where it is twice as
    large, negative where it is smaller."""
    return {name: math.log((max(size, 0) + 1) / (max(measured[name], 0) + 1)) for name, size in sorted(dims.items())}


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected at a shape of a kernel that was measured at another: seconds, and those of the default there."""

    latency_s: float
    default_s: float


def expected(
    task: SearchTask,
    kernel: MicroKernel,
    default: MicroKernel,
    measured_s: tuple[float, float | None],
    scopes: tuple[Mapping[str, int], Mapping[str, int]],
) -> Expected:
    """What the kernel and the default are expected to take at the first of two scopes, both values of the symbols,
    when they took ``measured_s`` (None: the default was not measured) at the second.

    Each by the theory of its rule, times the error of that theory where it was measured. A default that was not
    measured gets the other's error: only the theory then says which is faster.
    """
    sizes = [task.workload.axis_sizes(dims) for dims in scopes]
    extents = {axis: np.array([row[axis] for row in sizes], np.int64) for axis in task.workload.program.axes}
    (here, there), (default_here, default_there) = estimate_s(task, [kernel, default], extents).tolist()
    kernel_s, default_s = measured_s
    error = kernel_s / there
    return Expected(here * error, default_here * (error if default_s is None else default_s / default_there))
