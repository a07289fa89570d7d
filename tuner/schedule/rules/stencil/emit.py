"""TensorIR for windows: loops over tiles, each first copied and then computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.shares import Range, in_shares, position_of, product_of
from tuner.schedule.rules.stencil.compute import Computation
from tuner.schedule.rules.stencil.pattern import WindowProgram, window_program_of
from tuner.schedule.rules.stencil.scratch import Scratch
from tuner.schedule.rules.stencil.tiles import Tile, lanes_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import workspace


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    program = window_program_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        _Loops(task, kernel, function, program).emit()
    return function.get()


class _Loops:
    """Writes the loop over tiles; each thread has a contiguous share of them."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, program: WindowProgram) -> None:
        self.task, self.kernel, self.function, self.program = task, kernel, function, program
        self.lanes = lanes_of(task)
        self.steps = dict.fromkeys(program.outer, 1)
        if program.block is not None:
            self.steps[program.block.axis] = kernel["block"]
        self.steps[program.vector.axis] = kernel["chunk"] * self.lanes

    def emit(self) -> None:
        extents = self.function.extents
        counts = {axis: tirx.truncdiv(extents[axis] + i64(step - 1), i64(step)) for axis, step in self.steps.items()}
        total = product_of(counts)
        for slide in self.program.slides:
            if slide.axis not in self.steps:
                # A tile spans it as a whole, and would copy a window's reach even where there is nothing of it.
                total = total * tirx.min(extents[slide.axis], i64(1))
        scratch = Scratch(self.task.workload, self.program, self.function, self.kernel, self.lanes)

        def tiles(share: Range) -> None:
            with workspace(scratch.shape, scratch.dtype) as buffer, I.serial(*share) as number:
                tile = self._tile(position_of(number, counts))
                scratch.fill(buffer, tile)
                Computation(self.task, self.program, self.function, self.kernel, buffer, tile).emit()

        in_shares(I.Bind(total), self.task.threads, tiles)

    def _tile(self, position: Mapping[str, TirExpr]) -> Tile:
        starts = {axis: I.Bind(position[axis] * i64(step)) for axis, step in self.steps.items()}
        starts = {slide.axis: i64(0) for slide in self.program.slides} | starts
        sizes = {}
        for slide in self.program.slides:
            extent = self.function.extents[slide.axis]
            step = self.steps.get(slide.axis)
            sizes[slide.axis] = extent if step is None else I.Bind(tirx.min(extent - starts[slide.axis], i64(step)))
        return Tile(starts, sizes)
