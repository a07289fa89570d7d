"""A rough estimate for the fallback's kernels: arithmetic at scalar or vector rate, and the loops around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.expr import reads
from tuner.program.task import SearchTask
from tuner.schedule.access import vector_axis
from tuner.schedule.loops.estimates import Floats, feature_table, thread_speedup, volume
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

SCALAR_CYCLES = 1.0
"""Of one operation of a stage's body, element by element."""
READ_CYCLES = 0.7
ROW_CYCLES = 6.0
"""Of the loops around the innermost one."""


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return np.stack([_cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: the sizes of the stages, the kernel's values and the estimate."""
    estimate = latency_s(task, kernels, extents)
    volumes = [volume((*stage.axes, *stage.reduce_axes), extents) for stage in task.workload.program.stages]
    sizes = [np.log2(sum(volumes) + 1.0), np.log2(np.max(volumes, axis=0) + 1.0)]
    sizes += [np.full(len(volumes[0]), len(volumes))]
    return feature_table(sizes, kernels, estimate)


def _cycles(task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
    workload = task.workload
    forks = len(workload.program.stages) if task.threads > 1 else 0
    total: Floats = volume((), extents) * (task.rates.call + task.rates.fork * forks)
    for stage in workload.program.stages:
        axes = (*stage.axes, *stage.reduce_axes)
        points = volume(axes, extents)
        work = SCALAR_CYCLES * (len(list(reads(stage.body))) * READ_CYCLES + 1)
        chosen = vector_axis(workload, stage) if kernel["vector"] else None
        rows = points / np.maximum(extents[chosen.name] if chosen else extents[axes[-1]] if axes else 1, 1)
        lanes = task.known_target.hardware.lanes() if chosen else 1
        parts = _share(task, kernel, stage.axes, extents)
        latency = task.rates.fma_latency / kernel["sums"] if stage.reducer else 0.0
        total = total + (points * max(work, latency) / lanes + rows * ROW_CYCLES) / parts
    return total


def _share(task: SearchTask, kernel: MicroKernel, axes: tuple[str, ...], extents: Extents) -> Floats:
    """By how much the threads speed a stage up."""
    if task.threads == 1 or not axes:
        return np.ones(1)
    return thread_speedup(volume((axes[min(kernel["split"], len(axes) - 1)],), extents), task.threads)
