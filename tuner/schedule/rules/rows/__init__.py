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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.dtypes import DTYPES
from tuner.program.expr import axes_of
from tuner.program.rates import Rates
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.function import kernel_function
from tuner.schedule.loops.estimates import (
    Floats,
    LoopRule,
    body_cycles,
    bytes_at,
    call_cycles,
    stream_rate,
    thread_speedup,
    volume,
)
from tuner.schedule.rule import Extents, NoMatch
from tuner.schedule.rules.rows.emit import RowNest
from tuner.schedule.rules.rows.passes import Pass, RowProgram, lanes_of, match, row_program_of
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_ROWS = 8
MAX_PARTIAL_BYTES = 2**24
"""Of what threads reduce of their shares of the columns: rows beyond that are enough for all threads."""
RESERVED_REGISTERS = 4
"""For what is loaded and computed beside the accumulators."""
TURN_CYCLES = 1.0
PASS_CYCLES = 12.0
"""Of the loop over the columns, for each block of rows."""
TOTAL_CYCLES = 14.0
"""Of one reduction of a row: combining accumulators and lanes."""
TAIL_CYCLES = 8.0
"""Of one masked vector."""
AHEAD, SEVERAL = 1.3, 1.2
"""How many times as fast bytes come from beyond the L2 cache if the next rows were asked for, and if several stream
at a time."""
PREFETCH_CYCLES = 0.5
"""Of the requests for one vector."""
NAN_CYCLES = 1.5
"""Of a maximum or minimum beyond an addition: NaN is tested for."""


class RowReduction(LoopRule):
    """See the module's text for the axes; ``passes`` for what it takes, ``emit`` for the code."""

    name = "row_reduction"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        columns = {axis for stage in workload.program.stages for axis in stage.reduce_axes}
        rows = {axis for stage in workload.program.stages if stage.reducer for axis in stage.axes}
        roles = dict.fromkeys(rows, "row") | dict.fromkeys(columns, "column")
        return {axis: roles.get(axis, "elementwise") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        workload, program = task.workload, row_program_of(task.workload)
        sizes = workload.axis_sizes(task.largest_dims)
        columns = math.prod(sizes[part] for part in program.frame.parts_of(program.frame.columns))
        kept = [workload.tensors[tensor].dtype for tensor, home in program.homes.items() if home is None]
        row = columns * sum(DTYPES[dtype].bytes for dtype in kept)
        partial = MAX_PARTIAL_BYTES if task.threads > 1 and program.divides_columns else 0
        return task.threads * (MAX_ROWS if program.frame.rows else 1) * row + partial

    def space(self, task: SearchTask) -> SearchSpace:
        program = row_program_of(task.workload)
        rank, is_single = len(program.frame.rows), len(program.passes) == 1
        axes = (
            Axis("rows", "rows of a block", (1, 2, 4, MAX_ROWS) if rank else (1,)),
            Axis("acc", "vectors in a turn of a pass", (1, 2, 4, 8)),
            Axis("unroll", "vectors in a turn of a pass of costly functions", (1, 2, 4) if program.is_heavy else (1,)),
            Axis("ahead", "prefetch the next block of rows", (0, 1) if rank and not is_single else (0,)),
            Axis("split", "the axis of the rows divided among threads; the last: the columns", _splits(task)),
        )
        return SearchSpace(self.name, self.version, axes, check=_check(task))

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        space, is_single = self.space(task), len(row_program_of(task.workload).passes) == 1
        values = {axis.name: axis.choices[-1] if axis.name == "ahead" else axis.choices[0] for axis in space.axes}
        # Several rows are as many streams from memory.
        pairs = ((4, 2), (2, 4)) if is_single else ((2, 4),)
        tried = [{**values, "rows": rows, "acc": acc} for rows, acc in (*pairs, (1, 4), (1, 2), (1, 1))]
        return next(kernel for kernel in map(space.legal, tried) if kernel is not None)

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        program, lanes = row_program_of(task.workload), lanes_of(task)
        frame = program.frame
        rows, outer, inner = (
            volume(frame.parts_of(axes), extents) for axes in (frame.rows, frame.columns[:-1], (frame.vector,))
        )
        around = np.where(inner % lanes > 0, TAIL_CYCLES, 0.0) + PASS_CYCLES / kernel["rows"]
        per_row = np.zeros(len(rows))
        for number, each in enumerate(program.passes):
            per_row += outer * (_pass_cycles(task.rates, number, each, kernel, np.floor(inner / lanes)) + around)
            per_row += TOTAL_CYCLES * len(each.reductions)
        moved = _moved(task, extents)
        faster = AHEAD if kernel["ahead"] else 1.0
        faster *= SEVERAL if kernel["rows"] > 1 and len(program.passes) == 1 else 1.0
        hardware = task.known_target.hardware
        rate = np.where(moved < hardware.l1d_bytes, task.rates.l1_bytes, stream_rate(task, moved))
        waits = moved / rate / np.where(moved < hardware.l2_bytes, 1.0, faster)
        work = np.maximum(rows * per_row, waits) / _threads(task, kernel, program, extents)
        if program.splits_columns(kernel["split"], task.threads):
            work += rows * TOTAL_CYCLES * program.most_reductions * task.threads
        return np.asarray(work + call_cycles(task))

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        program = row_program_of(task.workload)
        frame = program.frame
        rows, columns = (volume(frame.parts_of(axes), extents) for axes in (frame.rows, frame.columns))
        sizes = [np.log2(rows + 1), np.log2(columns + 1), columns % lanes_of(task)]
        sizes.append(np.log2(_moved(task, extents) + 1))
        counts = (len(program.passes), program.most_reductions, program.is_heavy)
        return sizes + [np.full(len(rows), count) for count in counts]

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """As of every rule of loops, and the rows that are left over of blocks, before the estimate."""
        *given, estimate = np.moveaxis(super().features(task, kernels, extents), 2, 0)
        program = row_program_of(task.workload)
        rows = volume(program.frame.parts_of(program.frame.rows), extents)
        left_over = rows % np.array([[float(kernel["rows"])] for kernel in kernels])
        return np.stack([*given, np.broadcast_to(left_over, estimate.shape), estimate], axis=2).astype(np.float32)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        with kernel_function(task.workload, {}, name) as function:
            RowNest(task, kernel, function).emit()
        return function.get()


def _splits(task: SearchTask) -> tuple[int, ...]:
    """Choices of ``split``. Columns are divided where the partial results of the rows take little memory."""
    if task.threads == 1:
        return (0,)
    program, sizes = row_program_of(task.workload), task.workload.axis_sizes(task.largest_dims)
    rows = math.prod(sizes[part] for part in program.frame.parts_of(program.frame.rows))
    is_small = 8 * task.threads * rows * program.most_reductions <= MAX_PARTIAL_BYTES
    return tuple(range(program.columns_choice + (program.divides_columns and is_small)))


def _check(task: SearchTask) -> Callable[[MicroKernel], None]:
    """Accumulators must fit into vector registers."""
    program, registers = row_program_of(task.workload), task.known_target.hardware.vector_registers
    limit = registers - RESERVED_REGISTERS

    def check(kernel: MicroKernel) -> None:
        for each in program.passes:
            need = kernel["rows"] * each.turns(kernel) * len(each.reductions)
            if need > limit:
                raise IllegalKernel(f"{need} accumulators of {limit} vector registers: fewer rows, acc or unroll")

    return check


def _pass_cycles(rates: Rates, number: int, each: Pass, kernel: MicroKernel, vectors: Floats) -> Floats:
    """Of the whole vectors of one row in pass ``number``."""
    turns = each.turns(kernel)
    nodes = [node for stage in each.evaluated for node in values(stage.body)]
    arithmetic = body_cycles(rates, nodes) + rates.operation * 2 * len(each.written)
    arithmetic += NAN_CYCLES * sum(stage.reducer in ("max", "min") for stage in each.reductions)
    arithmetic += PREFETCH_CYCLES if kernel["ahead"] and number else 0.0
    latency = rates.fma_latency / (turns * kernel["rows"]) if each.reductions else 0.0
    left_over = vectors % turns * TURN_CYCLES
    return np.asarray(vectors * (max(arithmetic, latency) + TURN_CYCLES / turns) + left_over)


def _threads(task: SearchTask, kernel: MicroKernel, program: RowProgram, extents: Extents) -> Floats:
    frame = program.frame
    if program.splits_columns(kernel["split"], task.threads):
        units = volume(frame.parts_of(frame.columns[:1]), extents) / (lanes_of(task) if len(frame.columns) == 1 else 1)
        return thread_speedup(np.ceil(units), task.threads)
    if task.threads == 1 or not frame.rows:
        return np.ones(1)
    split = frame.rows[min(kernel["split"], len(frame.rows) - 1)]
    return thread_speedup(volume(frame.parts[split], extents), task.threads)


def _moved(task: SearchTask, extents: Extents) -> Floats:
    frame = row_program_of(task.workload).frame
    axes = {stage.tensor: stage.axes for stage in frame.stages}
    places = [(read.tensor, frame.parts_of(axes_of(read))) for read in frame.input_reads]
    places += [(output.name, frame.parts_of(axes[output.name])) for output in task.workload.outputs]
    return bytes_at(places, task.workload, extents)
