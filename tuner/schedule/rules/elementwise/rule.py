"""Programs without reductions: elementwise chains, layout transforms, casts and gathers, in one pass over the output.

Intermediates are computed where they are read. Axes of a micro-kernel:

==========  ====================================================================================================
``unroll``  vectors of the output that one turn of the innermost loop computes
``tile``    where a read is strided along the last axis (a transpose), elements of the square blocks in which the two
            axes are walked, so that lines of both tensors are used whole, and transposed in registers where they are
            as large as a vector; 0: not
``split``   which axis of the output, counted from the outermost one, is divided among the threads
==========  ====================================================================================================

No choice depends on a shape.
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
from tuner.schedule.rules.elementwise import estimate
from tuner.schedule.rules.elementwise.emit import emit
from tuner.schedule.rules.elementwise.pattern import elementwise_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MOST_SPLIT = 4


class Injective(Rule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "injective"
    version = 2

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        last = {stage.axes[-1] for stage in answer.program.stages if stage.axes}
        return {axis: "inner" if axis in last else "outer" for axis in workload.program.axes}

    def space(self, task: SearchTask) -> SearchSpace:
        loops = elementwise_of(task.workload)
        rank = max(1, *(len(stage.axes) for stage in loops.program.stages))
        splits = tuple(range(min(rank, MOST_SPLIT))) if task.threads > 1 else (0,)
        axes = (
            Axis("unroll", "vectors in a turn of the inner loop", (1, 2, 4, 8) if any(loops.vector.values()) else (1,)),
            Axis("tile", "blocks of a transpose", (0, 8, 16, 32, 64) if loops.is_tiled else (0,)),
            Axis("split", "the axis divided among threads", splits),
        )
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: None)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        loops = elementwise_of(task.workload)
        unroll, tile = 2 if any(loops.vector.values()) else 1, 64 if loops.is_tiled else 0
        return self.space(task).kernel({"unroll": unroll, "tile": tile, "split": 0})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)
