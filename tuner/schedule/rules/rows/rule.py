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
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.rows import estimate
from tuner.schedule.rules.rows.emit import emit
from tuner.schedule.rules.rows.pattern import columns_choice, match, row_program_of
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MOST_ROWS = 8
MOST_PARTIAL_BYTES = 2**24
"""Of what threads reduce of their shares of the columns: rows beyond that are enough for all threads."""
RESERVED_REGISTERS = 4
"""For what is loaded and computed beside the accumulators."""


class RowReduction(Rule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` and ``rows`` for the code."""

    name = "row_reduction"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        columns = {axis for stage in workload.program.stages for axis in stage.reduce_axes}
        rows = {axis for stage in workload.program.stages if stage.reducer for axis in stage.axes}
        roles = {axis: "column" for axis in workload.program.axes if axis in columns}
        return {axis: roles.get(axis, "row" if axis in rows else "elementwise") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        workload, program = task.workload, row_program_of(task.workload)
        sizes = workload.axis_sizes(task.largest_dims)
        columns = math.prod(sizes[part] for axis in program.frame.columns for part in program.frame.parts[axis])
        kept = [tensor for tensor, home in program.homes.items() if home is None]
        row = columns * sum(DTYPES[workload.tensors[tensor].dtype].bytes for tensor in kept)
        partial = MOST_PARTIAL_BYTES if task.threads > 1 and program.divides_columns else 0
        return task.threads * (MOST_ROWS if program.frame.rows else 1) * row + partial

    def space(self, task: SearchTask) -> SearchSpace:
        program = row_program_of(task.workload)
        rank, is_single = len(program.frame.rows), len(program.passes) == 1
        is_costly = program.is_heavy
        axes = (
            Axis("rows", "rows of a block", (1, 2, 4, MOST_ROWS) if rank else (1,)),
            Axis("acc", "vectors in a turn of a pass", (1, 2, 4, 8)),
            Axis("unroll", "vectors in a turn of a pass of costly functions", (1, 2, 4) if is_costly else (1,)),
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

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _splits(task: SearchTask) -> tuple[int, ...]:
    """Choices of ``split``. Columns are divided where the partial results of the rows take little memory."""
    program = row_program_of(task.workload)
    if task.threads == 1:
        return (0,)
    columns = columns_choice(program)
    return tuple(range(columns + (_partial_bytes(task) <= MOST_PARTIAL_BYTES)))


def _partial_bytes(task: SearchTask) -> float:
    """Of what threads reduce of their columns, at most; infinite where columns cannot be divided."""
    program, sizes = row_program_of(task.workload), task.workload.axis_sizes(task.largest_dims)
    rows = math.prod(sizes[part] for axis in program.frame.rows for part in program.frame.parts[axis])
    return 8 * task.threads * rows * program.most_reductions if program.divides_columns else math.inf


def _check(task: SearchTask) -> Callable[[MicroKernel], None]:
    """Accumulators must fit into vector registers."""
    program, registers = row_program_of(task.workload), task.known_target.hardware.vector_registers
    limit = registers - RESERVED_REGISTERS

    def check(kernel: MicroKernel) -> None:
        for each in program.passes:
            turns = kernel["unroll"] if each.is_heavy else kernel["acc"]
            need = kernel["rows"] * turns * len(each.reductions)
            if need > limit:
                raise IllegalKernel(f"{need} accumulators of {limit} vector registers: fewer rows, acc or unroll")

    return check
