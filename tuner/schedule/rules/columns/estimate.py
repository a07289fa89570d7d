"""The estimate for column reductions: arithmetic, and the bytes that move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import axes_of, reads
from tuner.program.task import SearchTask
from tuner.schedule.access import values
from tuner.schedule.loops.estimates import Floats, call_cycles, feature_table, stream_rate, thread_speedup, volume
from tuner.schedule.rule import Extents
from tuner.schedule.rules.columns.pattern import column_program_of
from tuner.schedule.space import MicroKernel

GROUP_CYCLES = 12.0
"""Of a group of rows: its loop, and a masked vector at the end."""
TURN_CYCLES = 2.0
"""Of a vector of accumulators: loaded and stored once for each group."""


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: of 8 bytes if the reduction or what is made of it has such."""
    program, types = column_program_of(task.workload), task.workload.element_types
    computed = [types.reduced_type(program.stage), *(types.type_of(stage.body) for stage in program.after)]
    return task.known_target.hardware.lanes(8 if any(dtype in ("int64", "float64") for dtype in computed) else 4)


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return np.stack([_cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: elements, bytes, columns, the kernel's values and the estimate."""
    program = column_program_of(task.workload)
    estimate, columns = latency_s(task, kernels, extents), volume((program.column,), extents)
    elements = volume((*program.stage.axes, *program.rows), extents)
    sizes = [np.log2(elements + 1), np.log2(_bytes(task, extents) + 1), np.log2(columns + 1), columns % lanes_of(task)]
    return feature_table(sizes, kernels, estimate)


def _cycles(task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
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


def _bytes(task: SearchTask, extents: Extents) -> Floats:
    """[shapes] bytes of every read and output at the axes that it depends on."""
    program, tensors = column_program_of(task.workload), task.workload.tensors
    total = volume((), extents) * 0.0
    for read in dict.fromkeys(read for stage in (program.stage, *program.after) for read in reads(stage.body)):
        total = total + DTYPES[tensors[read.tensor].dtype].bytes * volume(tuple(axes_of(read)), extents)
    return np.asarray(
        total + volume(program.stage.axes, extents) * sum(DTYPES[t.dtype].bytes for t in task.workload.outputs)
    )
