"""The estimate for injective kernels: the larger of computing and moving bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Call, axes_of, reads, walk
from tuner.program.notation import Stage
from tuner.program.rates import Rates
from tuner.program.task import SearchTask
from tuner.schedule.loops.estimates import Floats, call_cycles, feature_table, stream_rate, volume
from tuner.schedule.rule import Extents
from tuner.schedule.rules.elementwise.pattern import elementwise_of
from tuner.schedule.space import MicroKernel

ROW_CYCLES = 5.0
TURN_CYCLES = 0.4
"""Of an element that is transposed in registers."""


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return np.stack([_cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: elements, bytes, length of a row, the kernel's values and the estimate."""
    estimate = latency_s(task, kernels, extents)
    stages = elementwise_of(task.workload).program.stages
    elements = np.max([volume(stage.axes, extents) for stage in stages], axis=0)
    row = np.max([volume(stage.axes[-1:], extents) for stage in stages], axis=0)
    sizes = [np.log2(elements + 1), np.log2(_bytes(task, extents) + 1), np.log2(row + 1), row % 8]
    return feature_table(sizes, kernels, estimate)


def _cycles(task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
    loops, hardware = elementwise_of(task.workload), task.known_target.hardware
    compute = np.zeros(len(volume((), extents)))
    for stage in loops.program.stages:
        is_turned = bool(loops.turned[stage.tensor]) and kernel["tile"] >= hardware.lanes()
        lanes = hardware.lanes() if loops.vector[stage.tensor] or is_turned else 1
        elements = volume(stage.axes, extents)
        strided = 4.0 if loops.crossed[stage.tensor] and not kernel["tile"] else 0.0
        each = (
            _operations(task.rates, stage) / lanes
            + strided
            + 0.5 / (kernel["unroll"] * lanes)
            + TURN_CYCLES * is_turned
        )
        compute += elements * each + volume(stage.axes[:-1], extents) * ROW_CYCLES
    moved = _bytes(task, extents)
    work = np.maximum(compute, moved / stream_rate(task, moved)) / task.threads
    return np.asarray(work + call_cycles(task))


def _operations(rates: Rates, stage: Stage) -> float:
    """Cycles of one vector (or element) of a stage."""
    nodes = list(walk(stage.body))
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return rates.operation * len(nodes) + rates.function * called


def _bytes(task: SearchTask, extents: Extents) -> Floats:
    """[shapes] bytes of every read and write at the axes that it depends on."""
    loops, tensors = elementwise_of(task.workload), task.workload.tensors
    total = np.zeros(len(volume((), extents)))
    for stage in loops.program.stages:
        total += DTYPES[tensors[stage.tensor].dtype].bytes * volume(stage.axes, extents)
        for read in dict.fromkeys(reads(stage.body)):
            total += DTYPES[tensors[read.tensor].dtype].bytes * volume(tuple(axes_of(read)), extents)
    return total
