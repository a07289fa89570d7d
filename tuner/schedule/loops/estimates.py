"""What the analytic estimates of several rules share. What a core does in a cycle is in tuner/program/rates.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]


def stream_rate(task: SearchTask, size: Floats) -> Floats:
    """Bytes per cycle of the first level beyond L1 that holds so many."""
    rates, hardware = task.rates, task.known_target.hardware
    in_l2, in_l3 = size < hardware.l2_bytes, size < hardware.l3_bytes
    return np.where(in_l2, rates.l2_bytes, np.where(in_l3, rates.l3_bytes, rates.memory_bytes))


def call_cycles(task: SearchTask) -> float:
    """Of a call, and of waking the threads."""
    return task.rates.call + (task.rates.fork if task.threads > 1 else 0.0)


def volume(axes: Iterable[str], extents: Extents) -> Floats:
    """[shapes] how many points some axes have."""
    width = len(next(iter(extents.values()))) if extents else 1
    return np.asarray(np.prod([np.ones(width), *(np.asarray(extents[axis], np.float64) for axis in axes)], axis=0))


def thread_speedup(size: Floats, threads: int) -> Floats:
    """[shapes] by how much threads speed up a loop of ``size`` turns: the largest share counts."""
    turns = np.maximum(size, 1.0)
    return np.asarray(turns / np.ceil(turns / threads))


def feature_table(sizes: Sequence[Floats], kernels: Sequence[MicroKernel], estimate: Floats) -> NDArray[np.float32]:
    """[kernels, shapes, features]: ``sizes`` ([shapes] or [kernels, 1], broadcast), kernel values, the estimate."""
    values = [np.array([[float(kernel[name])] for kernel in kernels]) for name, _ in kernels[0].values]
    columns = [np.broadcast_to(column, estimate.shape) for column in (*sizes, *values)]
    return np.stack([*columns, np.log2(estimate)], axis=2).astype(np.float32)
