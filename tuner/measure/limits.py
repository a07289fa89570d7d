"""How long a candidate may take, whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import WorkloadInstance

RUN_TIMEOUT_S = 10.0
SLOWEST_FLOPS = 5e9
"""The least speed of a candidate: slower ones run into their time limit."""
SLOWEST_FLUSH = 5e8
"""Bytes that are flushed from the caches in a second, at the least."""
CALLS = 6
"""Calls of a kernel that one instance takes at least: warm-up and samples (see tuner.measure.timing.protocol)."""


def run_limit_s(task: SearchTask, instances: Sequence[WorkloadInstance], timeout_s: float = RUN_TIMEOUT_S) -> float:
    """Verification and every instance: ``timeout_s``, and what these take at SLOWEST_FLOPS."""
    dims = [task.workload.dims(instance.shape) for instance in instances]
    return timeout_s + CALLS * sum(slowest_s(task, values) for values in dims)


def slowest_s(task: SearchTask, dims: Mapping[str, int]) -> float:
    """One call at SLOWEST_FLOPS, its operands flushed before. What does no arithmetic takes time, too."""
    workload = task.workload
    flushed = () if task.cache is Cache.WARM else workload.operands
    size = sum(prod(tensor.shape(dims)) * DTYPES[tensor.dtype].bytes for tensor in flushed)
    return max(workload.flops(dims), workload.points(dims)) / SLOWEST_FLOPS + size / SLOWEST_FLUSH
