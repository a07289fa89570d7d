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
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.columns import estimate
from tuner.schedule.rules.columns.emit import emit
from tuner.schedule.rules.columns.pattern import column_program_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

ROWS, STRIPS = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)


class ColumnReduction(Rule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "column_reduction"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        roles = dict.fromkeys(answer.rows, "row") | {answer.column: "column"}
        return {axis: roles.get(axis, "outer") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        return task.threads * STRIPS[-1] * task.known_target.hardware.vector_bytes

    def space(self, task: SearchTask) -> SearchSpace:
        columns = task.workload.sizes[column_program_of(task.workload).column].constant
        lanes = estimate.lanes_of(task)
        strips = tuple(strip for strip in STRIPS if columns is None or strip == 1 or strip * lanes < 4 * columns)
        axes = (
            Axis("rows", "rows that are added at a time", ROWS),
            Axis("strip", "vectors of accumulators", strips),
        )
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: None)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        space = self.space(task)
        # The longer the streams, the better; but each thread needs strips of its own.
        wanted = STRIPS[-1] if task.threads == 1 else 16
        strip = max(choice for choice in space.axes[1].choices if choice <= wanted)
        return space.kernel({"rows": 8, "strip": strip})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)
