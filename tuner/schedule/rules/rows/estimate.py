"""The estimate for row reductions: for each pass the larger of arithmetic, latency of accumulation and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Call, axes_of
from tuner.program.rates import Rates
from tuner.program.task import SearchTask
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import Floats, call_cycles, stream_rate, thread_speedup, volume
from tuner.schedule.rule import Extents
from tuner.schedule.rules.rows.frame import Frame, input_reads
from tuner.schedule.rules.rows.pattern import Pass, RowProgram, columns_choice, row_program_of
from tuner.schedule.space import MicroKernel

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


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: the widest type of the program fills a register."""
    workload = task.workload
    computed = [workload.element_types.type_of(stage.body) for stage in workload.program.stages]
    types = [*(DTYPES[tensor.dtype].compute for tensor in workload.tensors.values()), *computed]
    widest = max(
        DTYPES[dtype].bytes for dtype in types if dtype != "int64" or "int64" in dict(workload.dtypes).values()
    )
    return task.known_target.hardware.lanes(max(widest, 4))


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return np.stack([_cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: rows, columns, bytes, passes, the kernel's values and the estimate."""
    program = row_program_of(task.workload)
    rows, columns = (_volume(program.frame, axes, extents) for axes in (program.frame.rows, program.frame.columns))
    estimate, moved = latency_s(task, kernels, extents), _bytes(task, program, extents)
    sizes = [np.log2(rows + 1), np.log2(columns + 1), columns % lanes_of(task), np.log2(moved + 1)]
    sizes += [np.full(len(rows), count) for count in (len(program.passes), program.most_reductions, program.is_heavy)]
    shaped = [np.broadcast_to(size, estimate.shape) for size in sizes]
    given = [np.array([[float(kernel[name])] for kernel in kernels]) for name, _ in kernels[0].values]
    left_over = rows % np.array([[float(kernel["rows"])] for kernel in kernels])
    shaped += [np.broadcast_to(value, estimate.shape) for value in (*given, left_over)]
    return np.stack([*shaped, np.log2(estimate)], axis=2).astype(np.float32)


def _cycles(task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
    program, lanes = row_program_of(task.workload), lanes_of(task)
    frame = program.frame
    rows, inner = (_volume(frame, axes, extents) for axes in (frame.rows, (frame.vector,)))
    outer = _volume(frame, frame.columns[:-1], extents)
    vectors = np.floor(inner / lanes)
    per_row = np.zeros(len(rows))
    for number, each in enumerate(program.passes):
        per_row += outer * (
            _pass_cycles(task.rates, number, each, kernel, vectors) + np.where(inner % lanes > 0, TAIL_CYCLES, 0.0)
        )
        per_row += PASS_CYCLES * outer / kernel["rows"] + TOTAL_CYCLES * len(each.reductions)
    moved = _bytes(task, program, extents)
    faster = AHEAD if kernel["ahead"] else 1.0
    faster *= SEVERAL if kernel["rows"] > 1 and len(program.passes) == 1 else 1.0
    waits = moved / _rate(task, moved) / np.where(moved < task.known_target.hardware.l2_bytes, 1.0, faster)
    work = np.maximum(rows * per_row, waits) / _threads(task, kernel, program, extents)
    if _divides_columns(task, kernel, program):
        work += rows * TOTAL_CYCLES * program.most_reductions * task.threads
    return np.asarray(work + call_cycles(task))


def _pass_cycles(rates: Rates, number: int, each: Pass, kernel: MicroKernel, vectors: Floats) -> Floats:
    """Of the whole vectors of one row in pass ``number``."""
    turns = kernel["unroll"] if each.is_heavy else kernel["acc"]
    nodes = [node for stage in each.evaluated for node in values(stage.body)]
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    arithmetic = rates.operation * (len(nodes) + 2 * len(each.written)) + rates.function * called
    arithmetic += NAN_CYCLES * sum(stage.reducer in ("max", "min") for stage in each.reductions)
    arithmetic += PREFETCH_CYCLES if kernel["ahead"] and number else 0.0
    latency = rates.fma_latency / (turns * kernel["rows"]) if each.reductions else 0.0
    left_over = vectors % turns * TURN_CYCLES
    return np.asarray(vectors * (max(arithmetic, latency) + TURN_CYCLES / turns) + left_over)


def _threads(task: SearchTask, kernel: MicroKernel, program: RowProgram, extents: Extents) -> Floats:
    """By how much the threads speed it up."""
    frame = program.frame
    if _divides_columns(task, kernel, program):
        units = _volume(frame, frame.columns[:1], extents) / (lanes_of(task) if len(frame.columns) == 1 else 1)
        return thread_speedup(np.ceil(units), task.threads)
    if task.threads == 1 or not frame.rows:
        return np.ones(1)
    split = frame.rows[min(kernel["split"], len(frame.rows) - 1)]
    return thread_speedup(_volume(frame, (split,), extents), task.threads)


def _divides_columns(task: SearchTask, kernel: MicroKernel, program: RowProgram) -> bool:
    return task.threads > 1 and kernel["split"] == columns_choice(program)


def _rate(task: SearchTask, moved: Floats) -> Floats:
    """Bytes per cycle of the level that holds so many."""
    in_l1 = moved < task.known_target.hardware.l1d_bytes
    return np.where(in_l1, task.rates.l1_bytes, stream_rate(task, moved))


def _bytes(task: SearchTask, program: RowProgram, extents: Extents) -> Floats:
    """[shapes] bytes of every input and output, each once."""
    frame, tensors = program.frame, task.workload.tensors
    total = np.zeros(len(_volume(frame, (), extents)))
    for read in input_reads(frame.stages):
        total += DTYPES[tensors[read.tensor].dtype].bytes * _volume(frame, tuple(axes_of(read)), extents)
    for output in task.workload.outputs:
        stage = next(stage for stage in frame.stages if stage.tensor == output.name)
        total += DTYPES[output.dtype].bytes * _volume(frame, stage.axes, extents)
    return total


def _volume(frame: Frame, axes: Sequence[str], extents: Extents) -> Floats:
    """[shapes] how many points some axes of the frame have."""
    return volume((part for axis in axes for part in frame.parts[axis]), extents)
