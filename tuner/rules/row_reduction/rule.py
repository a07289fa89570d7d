"""Reductions along rows, with elementwise stages between and after: reduce, softmax, layer_norm, rms_norm, gemv.

A block of rows is walked in one pass over the columns for each level of dependent reductions, so that the row comes
from a near cache after the first pass. Axes of a micro-kernel:

==========  =====================================================================================================
``rows``    rows of a block: their passes run together
``acc``     vectors in a turn of a pass, and accumulators of each reduction and row, which hide the latency of additions
``unroll``  the same for passes that call functions of many instructions, whose constants take registers
``ahead``   1: the next block of rows is prefetched during the longest pass after the first
``near``    elements that a single pass prefetches ahead of its reads; 0: none
``split``   which axis of the rows, counted from the outermost one, is divided among the threads
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
from tuner.rules._base import Extents, Refused
from tuner.rules.layout import Layout
from tuner.rules.row_reduction import prior
from tuner.rules.row_reduction.pattern import match, row_program_of
from tuner.rules.space import Axis, MicroKernel, SearchSpace

MOST_ROWS = 8
SAFE_NEAR = 512
"""Elements that the default prefetches in a single pass: the latency of memory at the rate of one core."""
RESERVED_REGISTERS = 4
"""For what is loaded and computed beside the accumulators."""


class RowReduction:
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` and ``rows`` for the code."""

    name = "row_reduction"
    version = 1
    is_fallback = False

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | Refused:
        if target.kind != "llvm":
            return Refused(f"{target.kind} is not a CPU that LLVM generates code for")
        answer = match(workload)
        if isinstance(answer, Refused):
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
        return task.threads * (MOST_ROWS if program.frame.rows else 1) * row

    def space(self, task: SearchTask) -> SearchSpace:
        program = row_program_of(task.workload)
        rank, is_single = len(program.frame.rows), len(program.passes) == 1
        is_split, is_costly = task.threads > 1 and rank > 0, program.is_heavy
        axes = (
            Axis("rows", "rows of a block", (1, 2, 4, MOST_ROWS) if rank else (1,)),
            Axis("acc", "vectors in a turn of a pass", (1, 2, 4, 8)),
            Axis("unroll", "vectors in a turn of a pass of costly functions", (1, 2, 4) if is_costly else (1,)),
            Axis("ahead", "prefetch the next block of rows", (0, 1) if rank and not is_single else (0,)),
            Axis("near", "elements prefetched in a single pass", (0, 256, 512, 1024) if rank and is_single else (0,)),
            Axis("split", "the axis of the rows divided among threads", tuple(range(rank)) if is_split else (0,)),
        )
        return SearchSpace(self.name, self.version, axes, check=_check(task))

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        space = self.space(task)
        choices = {axis.name: axis.choices for axis in space.axes}
        values = {name: values[0] for name, values in choices.items()} | {"ahead": choices["ahead"][-1]}
        values["near"] = SAFE_NEAR if SAFE_NEAR in choices["near"] else 0
        tried = [{**values, "rows": rows, "acc": acc} for rows, acc in ((2, 4), (1, 4), (1, 2), (1, 1))]
        return next(kernel for kernel in map(space.legal, tried) if kernel is not None)

    def prior_latency_s(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> NDArray[np.float64]:
        return prior.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return prior.features(task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return {}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        from tuner.rules.row_reduction.emit import emit  # noqa: PLC0415 - the one import that needs TVM

        return emit(task, kernel, name)


def _check(task: SearchTask) -> Callable[[MicroKernel], None]:
    """Accumulators must fit into vector registers, and what is prefetched into half of the nearest cache."""
    program, hardware = row_program_of(task.workload), task.known_target.hardware
    limit, half = hardware.vector_registers - RESERVED_REGISTERS, hardware.l1d_bytes // 2
    element = max(DTYPES[tensor.dtype].bytes for tensor in task.workload.inputs)

    def check(kernel: MicroKernel) -> None:
        if (need := kernel["rows"] * kernel["near"] * element) >= half:
            raise IllegalKernel(
                f"{need} bytes are prefetched into a cache of which {half} are free: fewer rows or near"
            )
        for each in program.passes:
            turns = kernel["unroll"] if each.is_heavy else kernel["acc"]
            need = kernel["rows"] * turns * len(each.reductions)
            if need > limit:
                raise IllegalKernel(f"{need} accumulators of {limit} vector registers: fewer rows, acc or unroll")

    return check
