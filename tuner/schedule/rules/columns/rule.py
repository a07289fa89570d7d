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

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.program.dtypes import DTYPES
from tuner.program.expr import axes_of, reads
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import Floats, call_cycles, stream_rate, thread_speedup, volume
from tuner.schedule.loops.rule import LoopRule
from tuner.schedule.rule import Extents, NoMatch
from tuner.schedule.rules.columns.emit import emit
from tuner.schedule.rules.columns.pattern import column_program_of, lanes_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

ROWS, STRIPS = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)
GROUP_CYCLES = 12.0
"""Of a group of rows: its loop, and a masked vector at the end."""
TURN_CYCLES = 2.0
"""Of a vector of accumulators: loaded and stored once for each group."""


class ColumnReduction(LoopRule):
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
        lanes = lanes_of(task)
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

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        program, lanes = column_program_of(task.workload), lanes_of(task)
        columns, outer = volume((program.column,), extents), volume(program.outer, extents)
        rows = volume(program.rows, extents)
        strips = outer * np.ceil(columns / (lanes * kernel["strip"]))
        each = 1.0 + task.rates.operation * (len(list(values(program.stage.body))) - 1)
        vectors = outer * np.ceil(columns / lanes)
        work = vectors * rows * (each + TURN_CYCLES / kernel["rows"]) + strips * rows / kernel["rows"] * GROUP_CYCLES
        moved = _bytes(task, extents)
        # A strip that is narrower than a page leaves the prefetchers of memory little to go by.
        narrow = 1.0 + 8.0 / kernel["strip"] * (columns > lanes * kernel["strip"])
        work = np.maximum(work, moved / stream_rate(task, moved) * narrow) / thread_speedup(strips, task.threads)
        return np.asarray(work + call_cycles(task))

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        program = column_program_of(task.workload)
        columns = volume((program.column,), extents)
        elements = volume((*program.stage.axes, *program.rows), extents)
        return [
            np.log2(elements + 1),
            np.log2(_bytes(task, extents) + 1),
            np.log2(columns + 1),
            columns % lanes_of(task),
        ]

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _bytes(task: SearchTask, extents: Extents) -> Floats:
    """[shapes] bytes of every read and output at the axes that it depends on."""
    program, tensors = column_program_of(task.workload), task.workload.tensors
    total = volume((), extents) * 0.0
    for read in dict.fromkeys(read for stage in (program.stage, *program.after) for read in reads(stage.body)):
        total = total + DTYPES[tensors[read.tensor].dtype].bytes * volume(tuple(axes_of(read)), extents)
    return np.asarray(
        total + volume(program.stage.axes, extents) * sum(DTYPES[t.dtype].bytes for t in task.workload.outputs)
    )
