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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import vector_axis
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.fallback import estimate
from tuner.schedule.rules.fallback.emit import emit
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MOST_SPLIT = 4


class Fallback(Rule):
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
        splits = tuple(range(min(rank, MOST_SPLIT))) if task.threads > 1 else (0,)
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

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

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
