"""The rule for any program: stage by stage, parallel outside, vectors inside where the reads allow it.

Every stage is computed as a whole before the next; intermediates live in a workspace. Axes of a micro-kernel:

==========  ===================================================================================================
``vector``  1: a stage runs in vectors along an axis whose reads are all contiguous or invariant (access.py says which);
            0: element by element
``split``   which axis of each stage's output, counted from the outermost one, is divided among the threads
``sums``    vector accumulators of a reduction, which hide the latency of its additions
==========  ===================================================================================================

It is right for every shape and tuned for none: a program that matters deserves a rule of its own (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.errors import IllegalKernel
from tuner.program.expr import reads
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import vector_axis
from tuner.schedule.loops.estimates import Floats, thread_speedup, volume
from tuner.schedule.loops.rule import LoopRule
from tuner.schedule.rule import Extents, NoMatch
from tuner.schedule.rules.fallback.emit import emit
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_SPLIT = 4
SCALAR_CYCLES = 1.0
"""Of one operation of a stage's body, element by element."""
READ_CYCLES = 0.7
ROW_CYCLES = 6.0
"""Of the loops around the innermost one."""


class Fallback(LoopRule):
    """See the module's text for the axes; ``tuner.schedule.access`` chooses vector axes, ``emit`` writes the code."""

    name = "fallback"
    is_fallback = True

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        outputs = {axis for stage in workload.program.stages for axis in stage.axes}
        return {axis: "parallel" if axis in outputs else "reduction" for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        tensors = (task.workload.tensors[name] for name in task.workload.program.intermediates)
        return sum(tensor.bytes(task.largest_dims) for tensor in tensors)

    def space(self, task: SearchTask) -> SearchSpace:
        rank = max(1, *(len(stage.axes) for stage in task.workload.program.stages))
        splits = tuple(range(min(rank, MAX_SPLIT))) if task.threads > 1 else (0,)
        reduces = _reduces_in_vectors(task.workload)
        axes = (
            Axis("vector", "stages run in vectors where reads allow it", (0, 1)),
            Axis("split", "the output axis divided among threads", splits),
            Axis("sums", "vector accumulators of a reduction", (1, 2, 4, 8) if reduces else (1,)),
        )
        return SearchSpace(self.name, self.version, axes, check=_check, canonicalise=_canonicalise)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        reduces = _reduces_in_vectors(task.workload)
        return self.space(task).kernel({"vector": 1, "split": 0, "sums": 4 if reduces else 1})

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
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

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        volumes = [volume((*stage.axes, *stage.reduce_axes), extents) for stage in task.workload.program.stages]
        sizes = [np.log2(sum(volumes) + 1.0), np.log2(np.max(volumes, axis=0) + 1.0)]
        sizes += [np.full(len(volumes[0]), len(volumes))]
        return sizes

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _reduces_in_vectors(workload: Workload) -> bool:
    axes = [vector_axis(workload, stage) for stage in workload.program.stages]
    return any(axis is not None and axis.is_reduced for axis in axes)


def _canonicalise(values: Mapping[str, int]) -> dict[str, int]:
    """Without vectors there are no vector accumulators."""
    return {**values, "sums": values["sums"] if values["vector"] else 1}


def _check(kernel: MicroKernel) -> None:
    if not kernel["vector"] and kernel["sums"] != 1:
        raise IllegalKernel(f"sums={kernel['sums']} needs vector=1: one accumulator without vectors")


def _share(task: SearchTask, kernel: MicroKernel, axes: tuple[str, ...], extents: Extents) -> Floats:
    """By how much the threads speed a stage up."""
    if task.threads == 1 or not axes:
        return np.ones(1)
    return thread_speedup(volume((axes[min(kernel["split"], len(axes) - 1)],), extents), task.threads)
