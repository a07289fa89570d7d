"""How long kernels for windows take, in theory: tiles that are copied or read where they lie, and whole images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import reads
from tuner.program.language.notation import Stage
from tuner.program.target.rates import Rates
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import (
    Floats,
    body_cycles,
    nan_cycles,
    pushed_out,
    roofline,
    thread_speedup,
    volume,
)
from tuner.schedule.rule import Extents
from tuner.schedule.rules.stencil.narrow import Planes, planes_of
from tuner.schedule.rules.stencil.pattern import WindowProgram
from tuner.schedule.space import MicroKernel

TILE_CYCLES = 60.0
ROW_CYCLES = 5.0
"""Cycles of a row of the copy, and of its masked vectors."""
COPY_CYCLES = 1.5
"""Cycles of a vector loaded, moved about and stored."""
GROUP_CYCLES = 6.0
"""Cycles of the loops around a register block, and of its stores."""
DIRECT_GROUP_CYCLES = 2.0
"""The same of blocks that read the image; on an EPYC (Zen 4)."""
ALONE = 0.2
"""The share of the work of such blocks that does not overlap with loads and stores beyond the first cache; on the same
EPYC."""
CROWDED = 0.8
"""By how much more, for all of its loads, a tile whose rows fall on few sets of that cache; on a Xeon (family 6 model
207)."""
OUTSIDE_L1 = 1.5
"""By how much a tile is slower whose copy the first cache does not hold."""


def cycles_of(task: SearchTask, found: WindowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
    """[shapes] cycles of a call of a kernel of the rule."""
    if kernel.get("merged") > 1:
        return _merged_cycles(task, found, extents)
    if kernel.get("direct") > 1:
        return _direct_cycles(task, found, kernel, extents)
    return _copied_cycles(task, found, kernel, extents)


def planes_for(task: SearchTask, found: WindowProgram) -> Planes | None:
    """The planes of narrow images, if the rows of these share vectors."""
    return planes_of(task.workload, found, found.lanes(task))


def _copied_cycles(task: SearchTask, found: WindowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
    """Cycles of a kernel that copies each of its tiles."""
    lanes, row = found.lanes(task), volume((found.vector.axis,), extents)
    vectors, chunks = np.ceil(row / lanes), np.ceil(row / (lanes * kernel["chunk"]))
    rows = positions = volume(found.outer, extents)
    tiles, held = rows * chunks, np.ones(len(row)) * (kernel["chunk"] + 1) * lanes * 4 * len(found.phases)
    for slide in found.slides[:-1]:
        size = volume((slide.axis,), extents)
        blocks = np.ceil(size / kernel["block"]) if slide is found.block else np.ones(len(size))
        tiles = tiles * blocks
        positions = positions * size
        held = held * slide.span(np.ceil(size / blocks.clip(1)).clip(1))
        rows = rows * (slide.stride * np.maximum(size - blocks, 0) + blocks * (slide.reach + 1))
    beyond = np.ceil(found.vector.reach / found.vector.stride / lanes) * chunks
    copied = rows * (vectors + beyond) * COPY_CYCLES * found.vector.stride + rows * chunks * ROW_CYCLES
    slower = np.where(held > task.known_target.hardware.l1d_bytes, OUTSIDE_L1, 1.0)
    slower = slower + CROWDED * _crowded(task, found, kernel, extents)
    each = partial(_vector_cycles, task.rates, found)
    computed = positions * vectors * _mean_of_groups(found, kernel, extents, lanes, each)
    work = tiles * TILE_CYCLES + (copied + computed) * slower
    return roofline(task, work, bytes_of(task, found, extents), thread_speedup(tiles, task.threads))


def _merged_cycles(task: SearchTask, found: WindowProgram, extents: Extents) -> Floats:
    """Cycles of a kernel whose vectors have several rows of an image."""
    planes, images, stage = planes_for(task, found), volume(found.outer, extents), found.stage
    assert planes is not None
    tap = 1.0 + nan_cycles(stage) + _operations(task.rates, stage) / 4
    after = 1.0 + COPY_CYCLES + sum(_operations(task.rates, each) for each in found.after)
    written = -(-planes.height * planes.width // found.lanes(task))
    copied = planes.rows * (1 + planes.column.stride) * COPY_CYCLES
    work = images * (TILE_CYCLES + copied + planes.vectors * len(found.taps) * tap + written * after)
    return roofline(task, work, bytes_of(task, found, extents), thread_speedup(images, task.threads))


def _direct_cycles(task: SearchTask, found: WindowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
    """Cycles of a kernel that reads its tiles where they lie."""
    lanes, row = found.lanes(task), volume((found.vector.axis,), extents)
    tiles = volume(found.outer, extents) * np.ceil(row / (lanes * kernel["chunk"]))
    positions, lines = volume(found.outer, extents), np.ones(len(row))
    for slide in found.slides[:-1]:
        size = volume((slide.axis,), extents)
        tiles = tiles * (np.ceil(size / kernel["block"]) if slide is found.block else 1)
        positions = positions * size
        lines = lines * (slide.span(np.maximum(size, 1)) if slide is found.inner else slide.reach + 1)
    # Rows that push each other out are loaded again; lines that lie beside one another come together.
    pitch = row * DTYPES[task.workload.tensors[found.read.tensor].dtype].bytes
    slower = 1.0 + CROWDED * pushed_out(task.known_target.hardware, lines, pitch) / kernel["vectors"]
    each = partial(_direct_vector_cycles, task.rates, found, task.known_target.hardware.vector_registers)
    computed = positions * np.ceil(row / lanes) * _mean_of_groups(found, kernel, extents, lanes, each)
    work = tiles * TILE_CYCLES + computed * slower
    # Computation does not overlap with all of the traffic beyond the first cache.
    return roofline(task, work, bytes_of(task, found, extents), thread_speedup(tiles, task.threads)) + ALONE * work


def _crowded(task: SearchTask, program: WindowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
    """[shapes] the share of loads that find their line pushed out of the first cache: what the windows of a row of
    positions read lies as far apart as the rows of the copy, which may fall on few sets."""
    row = (kernel["chunk"] + (program.vector.reach > 0)) * program.lanes(task) * 4 * len(program.phases)
    lines: Floats = np.full(len(next(iter(extents.values()))), float(kernel["vectors"]))
    for slide in program.slides[:-1]:
        is_row = slide is program.inner and slide is not program.block
        lines = lines * slide.span(volume((slide.axis,), extents)) if is_row else lines * (slide.reach + 1)
    return pushed_out(task.known_target.hardware, lines, np.full(len(lines), row))


def _mean_of_groups(
    program: WindowProgram, kernel: MicroKernel, extents: Extents, lanes: int, cycles: Callable[[int, int], float]
) -> Floats:  # fmt: skip
    """[shapes] cycles of one vector of the output, from those in a register block of so many rows and vectors: what is
    left of a tile's positions, or vectors, by whole register blocks is computed one by one."""
    row = np.ceil(volume((program.vector.axis,), extents) / lanes)
    wide, high = _in_groups(row, np.full(len(row), kernel["chunk"]), kernel["vectors"]), np.zeros(len(row))
    if program.inner is not None:
        size = volume((program.inner.axis,), extents)
        block = np.full(len(row), kernel["block"]) if program.inner is program.block else size
        high = _in_groups(size, block, kernel["rows"])
    total: Floats = np.zeros(len(row))
    for share, rows in ((high, kernel["rows"]), (1 - high, 1)):
        for other, vectors in ((wide, kernel["vectors"]), (1 - wide, 1)):
            total += share * other * cycles(rows, vectors)
    return total


def _in_groups(size: Floats, block: Floats, group: int) -> Floats:
    """[shapes] the share of ``size`` positions, cut into blocks, that whole groups have."""
    whole = np.floor(size / np.maximum(block, 1))
    grouped = whole * np.floor(block / group) + np.floor((size - whole * block) / group)
    return np.asarray(grouped * group / np.maximum(size, 1))


def _vector_cycles(rates: Rates, program: WindowProgram, rows: int, vectors: int) -> float:
    """Cycles of one vector of the output in a register block of so many."""
    held = rows * vectors
    tap = max(_tap_cycles(rates, program), rates.fma_latency / held)
    return len(program.taps) * tap + _loads(program, rows) + _after_cycles(rates, program) + GROUP_CYCLES / held


def _direct_vector_cycles(rates: Rates, program: WindowProgram, registers: int, rows: int, vectors: int) -> float:
    """The same without a copy: nothing is stored that a load would wait for, and register blocks overlap. Weights are
    loaded once where registers hold them beside the accumulators."""
    weights = len(program.taps) * sum(read != program.read for read in set(reads(program.stage.body)))
    loads = _loads(program, rows) + (weights if vectors * (weights + rows) >= registers else 0)
    computed = max(len(program.taps) * _tap_cycles(rates, program), loads)
    return computed + _after_cycles(rates, program) + DIRECT_GROUP_CYCLES / (rows * vectors)


def _tap_cycles(rates: Rates, program: WindowProgram) -> float:
    return 1.0 + nan_cycles(program.stage) + _operations(rates, program.stage) / 4


def _loads(program: WindowProgram, rows: int) -> float:
    """Loads of the image for one vector of the output: positions next to each other share them."""
    inner = program.inner
    shared = 1.0 if inner is None else min(inner.span(rows), rows * inner.size) / (rows * inner.size)
    return len(program.taps) * shared


def _after_cycles(rates: Rates, program: WindowProgram) -> float:
    """Cycles of the elementwise stages, and of the store."""
    return 1.0 + sum(_operations(rates, stage) for stage in program.after)


def _operations(rates: Rates, stage: Stage) -> float:
    """Cycles of an elementwise body on one vector."""
    return body_cycles(rates, list(values(stage.body))) - rates.operation


def bytes_of(task: SearchTask, program: WindowProgram, extents: Extents) -> Floats:
    """[shapes] bytes of what is read through windows and of the outputs."""
    tensors = task.workload.tensors
    read = DTYPES[tensors[program.read.tensor].dtype].bytes * volume(program.outer, extents)
    for slide in program.slides:
        read = read * slide.span(np.maximum(volume((slide.axis,), extents), 1))
    written = sum(DTYPES[tensor.dtype].bytes for tensor in task.workload.outputs)
    return np.asarray(read + written * volume(program.stage.axes, extents))
