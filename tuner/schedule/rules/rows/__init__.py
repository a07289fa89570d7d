"""Reductions along rows, with elementwise stages between and after: reduce, softmax, layer_norm, rms_norm, gemv.

A block of rows is walked in one pass over the columns for each level of dependent reductions, so that the row comes
from a near cache after the first pass. Axes of a micro-kernel:

==========  =====================================================================================================
``rows``    rows of a block: their passes run together
``acc``     vectors in a turn of a pass, and accumulators of each reduction and row, which hide the latency of additions
``unroll``  the same for passes that call functions of many instructions, whose constants take registers
``ahead``   1: the next block of rows is prefetched during the longest pass after the first
``split``   which axis of the rows, counted from the outermost one, is divided among the threads; one more than there
            are: the columns, where a single pass does nothing but reduce (0: no axis, where there are no rows)
==========  =====================================================================================================

An intermediate with costly functions that several passes need is kept: in an output that is written later, if one
suits, else in a workspace. Other intermediates are computed again. No choice depends on a shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import axes_of
from tuner.program.language.workload import Workload
from tuner.program.target.rates import Rates
from tuner.schedule.access import values
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.estimates import (
    Floats,
    LoopRule,
    body_cycles,
    bytes_at,
    call_cycles,
    feature_table,
    nan_cycles,
    register_check,
    stream_rate,
    thread_speedup,
)
from tuner.schedule.rule import Extents
from tuner.schedule.rules.rows.emit import RowNest
from tuner.schedule.rules.rows.passes import Pass, RowProgram, lanes_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_ROWS = 8
MAX_PARTIAL_BYTES = 2**24
"""Bytes of what threads reduce of their shares of the columns: rows beyond that are enough for all threads."""
TURN_CYCLES = 1.0
PASS_CYCLES = 12.0
"""Cycles of the loop over the columns, for each block of rows."""
TOTAL_CYCLES = 14.0
"""Cycles of one reduction of a row: combining accumulators and lanes."""
TAIL_CYCLES = 8.0
"""Cycles of one masked vector."""
AHEAD, SEVERAL = 1.3, 1.2
"""How many times as fast bytes come from beyond the L2 cache if the next rows were asked for, and if several stream
at a time."""
PREFETCH_CYCLES = 0.5
"""Cycles of the requests for one vector."""


class RowReduction(LoopRule[RowProgram]):
    """See the module's text for the axes; ``passes`` for what it takes, ``emit`` for the code."""

    name = "row_reduction"
    find = staticmethod(match)

    def named(self, workload: Workload, found: RowProgram) -> Mapping[str, str]:
        roles = dict.fromkeys(workload.program.axes, "elementwise")
        reductions = [stage for stage in workload.program.stages if stage.reducer]
        roles |= {axis: "row" for stage in reductions for axis in stage.axes}
        return roles | {axis: "column" for stage in reductions for axis in stage.reduce_axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        program, sizes = self.found(task), task.workload.axis_sizes(task.largest_dims)
        columns = math.prod(sizes[part] for part in program.frame.parts_of(program.frame.columns))
        kept = [task.workload.tensors[tensor].dtype for tensor, home in program.homes.items() if home is None]
        row = columns * sum(DTYPES[dtype].bytes for dtype in kept)
        partial = MAX_PARTIAL_BYTES if task.threads > 1 and program.divides_columns else 0
        return task.threads * (MAX_ROWS if program.frame.rows else 1) * row + partial

    def axes(self, task: SearchTask, found: RowProgram) -> tuple[Axis, ...]:
        has_rows, is_single = bool(found.frame.rows), len(found.passes) == 1
        return (
            Axis("rows", "rows of a block", (1, 2, 4, MAX_ROWS) if has_rows else (1,)),
            Axis("acc", "vectors in a turn of a pass", (1, 2, 4, 8)),
            Axis("unroll", "vectors in a turn of a pass of costly functions", (1, 2, 4) if found.is_heavy else (1,)),
            Axis("ahead", "prefetch the next block of rows", (0, 1) if has_rows and not is_single else (0,)),
            Axis("split", "the axis of the rows divided among threads; the last: the columns", _splits(task, found)),
        )

    def space(self, task: SearchTask) -> SearchSpace:
        passes = self.found(task).passes

        def held(kernel: MicroKernel) -> int:
            return max(kernel["rows"] * each.turns(kernel) * len(each.reductions) for each in passes)

        return replace(super().space(task), check=register_check(task, held, "rows, acc or unroll"))

    def wanted(self, task: SearchTask, found: RowProgram) -> Iterable[Mapping[str, int]]:
        # Several rows are as many streams from memory.
        pairs = ((4, 2), (2, 4)) if len(found.passes) == 1 else ((2, 4),)
        tried = (*(pairs if found.frame.rows else ()), (1, 4), (1, 2), (1, 1))
        return ({"rows": rows, "acc": acc, "ahead": 1} for rows, acc in tried)

    def cycles(self, task: SearchTask, found: RowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
        lanes, frame, hardware = lanes_of(task), found.frame, task.known_target.hardware
        parts = (frame.rows, frame.columns[:-1], (frame.vector,))
        rows, outer, inner = (found.volume(axes, extents) for axes in parts)
        around = np.where(inner % lanes > 0, TAIL_CYCLES, 0.0) + PASS_CYCLES / kernel["rows"]
        per_row = np.zeros(len(rows))
        for number, each in enumerate(found.passes):
            per_row += outer * (_pass_cycles(task.rates, number, each, kernel, np.floor(inner / lanes)) + around)
            per_row += TOTAL_CYCLES * len(each.reductions)
        moved = _moved(task, found, extents)
        faster = AHEAD if kernel["ahead"] else 1.0
        faster *= SEVERAL if kernel["rows"] > 1 and len(found.passes) == 1 else 1.0
        rate = np.where(moved < hardware.l1d_bytes, task.rates.l1_bytes, stream_rate(task, moved))
        waits = moved / rate / np.where(moved < hardware.l2_bytes, 1.0, faster)
        work = np.maximum(rows * per_row, waits) / _threads(task, found, kernel, extents)
        if found.splits_columns(kernel["split"], task.threads):
            work += rows * TOTAL_CYCLES * found.most_reductions * task.threads
        return np.asarray(work + call_cycles(task))

    def sizes(self, task: SearchTask, found: RowProgram, extents: Extents) -> list[Floats]:
        rows, columns = (found.volume(axes, extents) for axes in (found.frame.rows, found.frame.columns))
        sizes = [np.log2(rows + 1), np.log2(columns + 1), columns % lanes_of(task)]
        sizes.append(np.log2(_moved(task, found, extents) + 1))
        counts = (len(found.passes), found.most_reductions, found.is_heavy)
        return sizes + [np.full(len(rows), count) for count in counts]

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """The features of every rule of loops, with the rows that are left over of blocks before the estimate."""
        found = self.found(task)
        blocks = np.array([[float(kernel["rows"])] for kernel in kernels])
        left_over = found.volume(found.frame.rows, extents) % blocks
        sizes, estimate = self.sizes(task, found, extents), self.estimate_s(task, kernels, extents)
        return feature_table(sizes, kernels, estimate, left_over)

    def write(self, task: SearchTask, found: RowProgram, kernel: MicroKernel, function: KernelFunction) -> None:
        RowNest(task, found, kernel, function).emit()


def _splits(task: SearchTask, program: RowProgram) -> tuple[int, ...]:
    """Choices of ``split``. Columns are divided where the partial results of the rows take little memory."""
    if task.threads == 1:
        return (0,)
    sizes = task.workload.axis_sizes(task.largest_dims)
    rows = math.prod(sizes[part] for part in program.frame.parts_of(program.frame.rows))
    is_small = 8 * task.threads * rows * program.most_reductions <= MAX_PARTIAL_BYTES
    return tuple(range(program.columns_choice + (program.divides_columns and is_small)))


def _pass_cycles(rates: Rates, number: int, each: Pass, kernel: MicroKernel, vectors: Floats) -> Floats:
    """Cycles of the whole vectors of one row in pass ``number``."""
    turns = each.turns(kernel)
    nodes = [node for stage in each.evaluated for node in values(stage.body)]
    arithmetic = body_cycles(rates, nodes) + rates.operation * 2 * len(each.written)
    arithmetic += sum(map(nan_cycles, each.reductions))
    arithmetic += PREFETCH_CYCLES if kernel["ahead"] and number else 0.0
    latency = rates.fma_latency / (turns * kernel["rows"]) if each.reductions else 0.0
    left_over = vectors % turns * TURN_CYCLES
    return np.asarray(vectors * (max(arithmetic, latency) + TURN_CYCLES / turns) + left_over)


def _threads(task: SearchTask, program: RowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
    frame = program.frame
    if program.splits_columns(kernel["split"], task.threads):
        units = program.volume(frame.columns[:1], extents) / (lanes_of(task) if len(frame.columns) == 1 else 1)
        return thread_speedup(np.ceil(units), task.threads)
    if task.threads == 1 or not frame.rows:
        return np.ones(1)
    split = frame.rows[min(kernel["split"], len(frame.rows) - 1)]
    return thread_speedup(program.volume((split,), extents), task.threads)


def _moved(task: SearchTask, program: RowProgram, extents: Extents) -> Floats:
    frame = program.frame
    axes = {stage.tensor: stage.axes for stage in frame.stages}
    places = [(read.tensor, frame.parts_of(axes_of(read))) for read in frame.input_reads]
    places += [(output.name, frame.parts_of(axes[output.name])) for output in task.workload.outputs]
    return bytes_at(places, task.workload, extents)
