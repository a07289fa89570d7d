"""What the analytic estimates of several rules share. Rates are of a common server core, in cycles unless said
otherwise; the learned residual corrects them for a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.rules._base import Extents
from tuner.rules.space import MicroKernel

CLOCK_HZ = 3e9
CALL_CYCLES = 150.0
FORK_CYCLES = 12_000.0
"""Of waking the threads of a parallel loop."""
OPERATION_CYCLES = 0.5
FUNCTION_CYCLES = 12.0
"""Of a transcendental function on one vector."""
L1_BYTES, L2_BYTES, L3_BYTES, MEMORY_BYTES = 64.0, 32.0, 10.0, 4.0
"""Bytes per cycle from each level."""

Floats = NDArray[np.float64]


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
