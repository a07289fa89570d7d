"""Reductions that leave the contiguous axis: sums of columns, products with a vector from the left, middle axes.

Rows are read as they lie in memory, several at a time, and added to a strip of accumulators that stays in the first
cache. Axes of a micro-kernel:

==========  ==========================================================================================================
``rows``    rows that are added at a time: as many streams from memory, and accumulators are loaded and stored once
            for all of them
``strip``   vectors of accumulators: the columns of a tile
==========  ==========================================================================================================

Threads share the strips. No choice depends on a shape that is dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout
from tuner.schedule.rule import Extents, Refused
from tuner.schedule.rules.columns import prior
from tuner.schedule.rules.columns.emit import emit
from tuner.schedule.rules.columns.pattern import column_program_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

ROWS, STRIPS = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)


class ColumnReduction:
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "column_reduction"
    version = 1
    is_fallback = False

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | Refused:
        if target.kind != "llvm":
            return Refused(f"{target.kind} is not a CPU that LLVM generates code for")
        answer = match(workload)
        if isinstance(answer, Refused):
            return answer
        roles = dict.fromkeys(answer.rows, "row") | {answer.column: "column"}
        return {axis: roles.get(axis, "outer") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        return task.threads * STRIPS[-1] * task.known_target.hardware.vector_bytes

    def space(self, task: SearchTask) -> SearchSpace:
        columns = task.workload.sizes[column_program_of(task.workload).column].constant
        lanes = prior.lanes_of(task)
        strips = tuple(strip for strip in STRIPS if columns is None or strip == 1 or strip * lanes < 4 * columns)
        axes = (
            Axis("rows", "rows that are added at a time", ROWS),
            Axis("strip", "vectors of accumulators", strips),
        )
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: None)

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        space = self.space(task)
        # The longer the streams, the better; but each thread needs strips of its own.
        wanted = STRIPS[-1] if task.threads == 1 else 16
        strip = max(choice for choice in space.axes[1].choices if choice <= wanted)
        return space.kernel({"rows": 8, "strip": strip})

    def prior_latency_s(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> NDArray[np.float64]:
        return prior.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return prior.features(task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return {}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)
