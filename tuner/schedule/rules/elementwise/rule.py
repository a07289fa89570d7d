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
from tuner.schedule.layout import Layout
from tuner.schedule.rule import Extents, Refused
from tuner.schedule.rules.elementwise import prior
from tuner.schedule.rules.elementwise.emit import emit
from tuner.schedule.rules.elementwise.pattern import elementwise_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MOST_SPLIT = 4


class Injective:
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "injective"
    version = 2
    is_fallback = False

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | Refused:
        if target.kind != "llvm":
            return Refused(f"{target.kind} is not a CPU that LLVM generates code for")
        answer = match(workload)
        if isinstance(answer, Refused):
            return answer
        last = {stage.axes[-1] for stage in answer.program.stages if stage.axes}
        return {axis: "inner" if axis in last else "outer" for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        return 0

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

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        loops = elementwise_of(task.workload)
        unroll, tile = 2 if any(loops.vector.values()) else 1, 64 if loops.is_tiled else 0
        return self.space(task).kernel({"unroll": unroll, "tile": tile, "split": 0})

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
