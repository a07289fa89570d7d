"""Small windows that move over a tensor: pooling, depthwise convolution and stencils, on any number of axes.

The output is cut into tiles. What a tile reads is copied first, with its padding and so that all loads are contiguous;
then the windows are unrolled over a register block of a few positions and vectors. Vectors run along the last axis,
spatial or of channels. Axes of a micro-kernel:

===========  ==========================================================================================================
``chunk``    vectors of a tile along the last axis
``block``    values of a tile of the first axis that windows move along; it spans the others as a whole
``rows``     positions of a register block along the last axis but that of the vectors: they share loads
``vectors``  vectors of a register block
===========  ==========================================================================================================

Threads share the tiles. No choice depends on a shape that is dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.errors import IllegalKernel
from tuner.program.dtypes import DTYPES
from tuner.program.notation import Stage
from tuner.program.rates import Rates
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import Floats, LoopRule, body_cycles, roofline, thread_speedup, volume
from tuner.schedule.rule import Extents, NoMatch
from tuner.schedule.rules.stencil.emit import emit
from tuner.schedule.rules.stencil.pattern import Slide, WindowProgram, lanes_of, match, window_program_of
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

CHUNKS, BLOCKS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)
RESERVED_REGISTERS = 4
"""For what is loaded and computed beside the accumulators."""
MAX_UNROLLED = 400
"""Elements of windows in the code of a register block."""
TILE_CYCLES = 60.0
ROW_CYCLES = 10.0
"""Of a row of the copy, and of its masked vectors."""
COPY_CYCLES = 1.5
"""Of a vector loaded, moved about and stored."""
GROUP_CYCLES = 6.0
"""Of the loops around a register block, and of its stores."""
OUTSIDE_L1 = 1.3
"""By how much a tile is slower whose copy the first cache does not hold."""
NAN_CYCLES = 1.5
"""More of a max or min than of an addition."""


class Stencil(LoopRule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "windows"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        roles = {slide.axis: "tile" for slide in answer.slides} | {answer.vector.axis: "vector"}
        roles |= dict.fromkeys(answer.stage.reduce_axes, "window")
        return {axis: roles.get(axis, "outer") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        program = window_program_of(task.workload)
        sizes = task.workload.axis_sizes(task.largest_dims)
        elements = (CHUNKS[-1] * lanes_of(task) + program.vector.reach + lanes_of(task)) * len(program.phases)
        for slide in program.slides[:-1]:
            size = min(sizes[slide.axis], BLOCKS[-1]) if slide is program.block else sizes[slide.axis]
            elements *= slide.span(max(size, 1))
        dtype = task.workload.tensors[program.read.tensor].dtype
        return task.threads * elements * max(DTYPES[dtype].bytes, 4)

    def space(self, task: SearchTask) -> SearchSpace:
        program, lanes = window_program_of(task.workload), lanes_of(task)
        limit = task.known_target.hardware.vector_registers - RESERVED_REGISTERS
        axes = (
            Axis("chunk", "vectors of a tile", _choices(task, program.vector, CHUNKS, lanes)),
            Axis("block", "values of a tile's first axis", _choices(task, program.block, BLOCKS, 1)),
            Axis("rows", "positions of a register block", (1,) if program.inner is None else (1, 2, 3, 4, 7, 8)),
            Axis("vectors", "vectors of a register block", (1, 2, 4)),
        )
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: _check(kernel, program, limit))

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        program, space = window_program_of(task.workload), self.space(task)
        choices = {axis.name: axis.choices for axis in space.axes}
        # Channels lie beside one another: a tile is narrow, and the image is high.
        chunk = max(choice for choice in choices["chunk"] if choice <= (2 if program.vector.window is None else 8))
        block = max(choice for choice in choices["block"] if choice <= 16)
        for rows in (4, 3, 2, 1):
            values = {"chunk": chunk, "block": block, "rows": rows, "vectors": 1}
            if rows in choices["rows"] and (kernel := space.legal(values)) is not None:
                return kernel
        raise IllegalKernel("one row and one vector are always legal")

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        program, lanes = window_program_of(task.workload), lanes_of(task)
        row = volume((program.vector.axis,), extents)
        vectors, chunks = np.ceil(row / lanes), np.ceil(row / (lanes * kernel["chunk"]))
        rows = positions = volume(program.outer, extents)
        tiles, held = rows * chunks, np.ones(len(row)) * (kernel["chunk"] + 1) * lanes * 4 * len(program.phases)
        for slide in program.slides[:-1]:
            size = volume((slide.axis,), extents)
            blocks = np.ceil(size / kernel["block"]) if slide is program.block else np.ones(len(size))
            tiles = tiles * blocks
            positions = positions * size
            held = held * slide.span(np.ceil(size / blocks.clip(1)).clip(1))
            rows = rows * (slide.stride * np.maximum(size - blocks, 0) + blocks * (slide.reach + 1))
        beyond = np.ceil(program.vector.reach / program.vector.stride / lanes) * chunks
        copied = rows * (vectors + beyond) * COPY_CYCLES * program.vector.stride + rows * chunks * ROW_CYCLES
        slower = np.where(held > task.known_target.hardware.l1d_bytes, OUTSIDE_L1, 1.0)
        computed = positions * vectors * _vector_cycles(task.rates, program, kernel)
        work = tiles * TILE_CYCLES + (copied + computed) * slower
        return roofline(task, work, _bytes(task, program, extents), thread_speedup(tiles, task.threads))

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        program, lanes = window_program_of(task.workload), lanes_of(task)
        row = volume((program.vector.axis,), extents)
        sizes = [np.log2(volume(program.stage.axes, extents) + 1), np.log2(_bytes(task, program, extents) + 1)]
        return [*sizes, np.log2(row + 1), row % lanes, np.full(len(row), len(program.taps) / program.vector.stride)]

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _choices(task: SearchTask, slide: Slide | None, choices: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Those up to the first that spans the whole axis, where its extent is known."""
    if slide is None:
        return choices[:1]
    size = task.workload.sizes[slide.axis].constant
    return tuple(choice for choice in choices if size is None or choice == 1 or choice * unit < 2 * size)


def _check(kernel: MicroKernel, program: WindowProgram, limit: int) -> None:
    """Accumulators must fit into ``limit`` vector registers, and unrolled code into the cache of instructions."""
    held = kernel["rows"] * kernel["vectors"]
    if held > limit:
        raise IllegalKernel(f"{held} accumulators of {limit} vector registers: fewer rows or vectors")
    if held > 1 and held * len(program.taps) > MAX_UNROLLED:
        raise IllegalKernel(f"{held * len(program.taps)} unrolled of {MAX_UNROLLED}: fewer rows or vectors")
    if kernel["vectors"] > kernel["chunk"]:
        raise IllegalKernel(f"vectors={kernel['vectors']} of chunk={kernel['chunk']}")
    if program.inner is program.block and kernel["rows"] > kernel["block"] > 1:
        raise IllegalKernel(f"rows={kernel['rows']} of block={kernel['block']}")


def _vector_cycles(rates: Rates, program: WindowProgram, kernel: MicroKernel) -> float:
    """Of one vector of the output."""
    held = kernel["rows"] * kernel["vectors"]
    nan = NAN_CYCLES if program.stage.reducer in ("max", "min") else 0.0
    tap = max(1.0 + nan + _operations(rates, program.stage) / 4, rates.fma_latency / held)
    loads, inner, rows = float(len(program.taps)), program.inner, kernel["rows"]
    if inner is not None:
        # Positions next to each other share loads of the copy.
        loads *= min(inner.span(rows), rows * inner.size) / (rows * inner.size)
    after = sum(_operations(rates, stage) for stage in program.after)
    return len(program.taps) * tap + loads + after + 1.0 + GROUP_CYCLES / held


def _operations(rates: Rates, stage: Stage) -> float:
    """Cycles of an elementwise body on one vector."""
    return body_cycles(rates, list(values(stage.body))) - rates.operation


def _bytes(task: SearchTask, program: WindowProgram, extents: Extents) -> Floats:
    """[shapes] bytes of what is read through windows and of the outputs."""
    tensors = task.workload.tensors
    read = DTYPES[tensors[program.read.tensor].dtype].bytes * volume(program.outer, extents)
    for slide in program.slides:
        read = read * slide.span(np.maximum(volume((slide.axis,), extents), 1))
    written = sum(DTYPES[tensor.dtype].bytes for tensor in task.workload.outputs)
    return np.asarray(read + written * volume(program.stage.axes, extents))
