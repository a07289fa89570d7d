"""The estimate for windows: copying and computing each tile, or the bytes that move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Call
from tuner.program.notation import Stage
from tuner.program.rates import Rates
from tuner.program.task import SearchTask
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import Floats, call_cycles, feature_table, stream_rate, thread_speedup, volume
from tuner.schedule.rule import Extents
from tuner.schedule.rules.stencil.pattern import Slide, WindowProgram, window_program_of
from tuner.schedule.rules.stencil.tiles import lanes_of
from tuner.schedule.space import MicroKernel

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


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return np.stack([_cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: output, bytes, length and raggedness of a row, taps, the values and the estimate."""
    program = window_program_of(task.workload)
    estimate, lanes = latency_s(task, kernels, extents), lanes_of(task)
    row = volume((program.vector.axis,), extents)
    sizes = [np.log2(volume(program.stage.axes, extents) + 1), np.log2(_bytes(task, program, extents) + 1)]
    sizes += [np.log2(row + 1), row % lanes, np.full(len(row), len(program.taps) / program.vector.stride)]
    return feature_table(sizes, kernels, estimate)


def _cycles(task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
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
        held = held * (slide.stride * (np.ceil(size / blocks.clip(1)) - 1).clip(0) + slide.reach + 1)
        rows = rows * (slide.stride * np.maximum(size - blocks, 0) + blocks * (slide.reach + 1))
    beyond = np.ceil(program.vector.reach / program.vector.stride / lanes) * chunks
    copied = rows * (vectors + beyond) * COPY_CYCLES * program.vector.stride + rows * chunks * ROW_CYCLES
    slower = np.where(held > task.known_target.hardware.l1d_bytes, OUTSIDE_L1, 1.0)
    work = tiles * TILE_CYCLES + (copied + positions * vectors * _vector_cycles(task.rates, program, kernel)) * slower
    moved = _bytes(task, program, extents)
    work = np.maximum(work, moved / stream_rate(task, moved))
    work = work / thread_speedup(tiles, task.threads)
    return np.asarray(work + call_cycles(task))


def _vector_cycles(rates: Rates, program: WindowProgram, kernel: MicroKernel) -> float:
    """Of one vector of the output."""
    held = kernel["rows"] * kernel["vectors"]
    nan = NAN_CYCLES if program.stage.reducer in ("max", "min") else 0.0
    tap = max(1.0 + nan + _operations(rates, program.stage) / 4, rates.fma_latency / held)
    loads = len(program.taps) * _shared(program.inner, kernel["rows"])
    after = sum(_operations(rates, stage) for stage in program.after)
    return len(program.taps) * tap + loads + after + 1.0 + GROUP_CYCLES / held


def _shared(inner: Slide | None, rows: int) -> float:
    """Loads of the copy for each that the windows of ``rows`` positions need."""
    if inner is None:
        return 1.0
    distinct = min(inner.stride * (rows - 1) + inner.reach + 1, rows * inner.size)
    return distinct / (rows * inner.size)


def _operations(rates: Rates, stage: Stage) -> float:
    """Cycles of an elementwise body on one vector."""
    nodes = list(values(stage.body))
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return rates.operation * (len(nodes) - 1) + rates.function * called


def _bytes(task: SearchTask, program: WindowProgram, extents: Extents) -> Floats:
    """[shapes] bytes of what is read through windows and of the outputs."""
    tensors = task.workload.tensors
    read = DTYPES[tensors[program.read.tensor].dtype].bytes * volume(program.outer, extents)
    for slide in program.slides:
        read = read * (slide.stride * np.maximum(volume((slide.axis,), extents) - 1, 0) + slide.reach + 1)
    written = sum(DTYPES[tensor.dtype].bytes for tensor in task.workload.outputs)
    return np.asarray(read + written * volume(program.stage.axes, extents))
