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

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Call, axes_of, reads, walk
from tuner.program.notation import Stage
from tuner.program.rates import Rates
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.loops.estimates import Floats, call_cycles, stream_rate, volume
from tuner.schedule.loops.rule import LoopRule
from tuner.schedule.rule import Extents, NoMatch
from tuner.schedule.rules.elementwise.emit import emit
from tuner.schedule.rules.elementwise.pattern import elementwise_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_SPLIT = 4
ROW_CYCLES = 5.0
TURN_CYCLES = 0.4
"""Of an element that is transposed in registers."""


class Injective(LoopRule):
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
        splits = tuple(range(min(rank, MAX_SPLIT))) if task.threads > 1 else (0,)
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

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        loops, hardware = elementwise_of(task.workload), task.known_target.hardware
        compute = np.zeros(len(volume((), extents)))
        for stage in loops.program.stages:
            is_turned = bool(loops.turned[stage.tensor]) and kernel["tile"] >= hardware.lanes()
            lanes = hardware.lanes() if loops.vector[stage.tensor] or is_turned else 1
            elements = volume(stage.axes, extents)
            strided = 4.0 if loops.crossed[stage.tensor] and not kernel["tile"] else 0.0
            each = (
                _operations(task.rates, stage) / lanes
                + strided
                + 0.5 / (kernel["unroll"] * lanes)
                + TURN_CYCLES * is_turned
            )
            compute += elements * each + volume(stage.axes[:-1], extents) * ROW_CYCLES
        moved = _bytes(task, extents)
        work = np.maximum(compute, moved / stream_rate(task, moved)) / task.threads
        return np.asarray(work + call_cycles(task))

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        stages = elementwise_of(task.workload).program.stages
        elements = np.max([volume(stage.axes, extents) for stage in stages], axis=0)
        row = np.max([volume(stage.axes[-1:], extents) for stage in stages], axis=0)
        return [np.log2(elements + 1), np.log2(_bytes(task, extents) + 1), np.log2(row + 1), row % 8]

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _operations(rates: Rates, stage: Stage) -> float:
    """Cycles of one vector (or element) of a stage."""
    nodes = list(walk(stage.body))
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return rates.operation * len(nodes) + rates.function * called


def _bytes(task: SearchTask, extents: Extents) -> Floats:
    """[shapes] bytes of every read and write at the axes that it depends on."""
    loops, tensors = elementwise_of(task.workload), task.workload.tensors
    total = np.zeros(len(volume((), extents)))
    for stage in loops.program.stages:
        total += DTYPES[tensors[stage.tensor].dtype].bytes * volume(stage.axes, extents)
        for read in dict.fromkeys(reads(stage.body)):
            total += DTYPES[tensors[read.tensor].dtype].bytes * volume(tuple(axes_of(read)), extents)
    return total
