"""What a device can do at best: multiply-adds with accumulators in registers, and reading memory.

The machine code comes from tuner.measure.roof.kernels. Nothing here needs TVM's compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.measure.tensors import tensor_of
from tuner.measure.timing.protocol import Timer, sampling
from tuner.measure.verification.guarded import Array, Guarded
from tuner.program.target import Target
from tuner.records import Roof

Call = Callable[[], object]
PEAK, READ = "peak", "read"
"""The names that the machine code exports."""
ROWS = 64
"""Rows of the operand that the accumulators go through again and again: 4 KB with vectors of 64 bytes."""
TURNS = 4096
READ_BYTES = 64 * 2**20
"""Read at a time, by all threads together: beyond every cache that a core has to itself."""
READ_ACCUMULATORS = 8
"""Enough sums at once that memory is waited for, not additions."""


def measure_roof(module: Any, target: Target, threads: int, timer: Timer) -> Roof:
    """The roof of this machine, on as many threads of TVM's pool; some tenths of a second. The best of several samples:
    what disturbs a core makes a peak only lower. ``module`` is the loaded binary for this very target and number of
    threads."""
    rates = []
    for work, call in (
        (peak_work(target, threads), peak_call(module, target, threads)),
        (read_bytes(target, threads), read_call(module, target, threads)),
    ):
        timed = timer.best(call, sampling(call))
        rates.append((work / timed.latency_s, timed.anchor_s))
    (flops_per_s, anchor_s), (bytes_per_s, _) = rates
    return Roof(flops_per_s, bytes_per_s, anchor_s)


def peak_work(target: Target, threads: int = 1) -> float:
    """Floating-point operations of one call of ``peak_call``."""
    return 2.0 * threads * TURNS * ROWS * accumulators(target) * target.hardware.lanes()


def peak_call(module: Any, target: Target, threads: int = 1) -> Call:
    """A millisecond's work at the float32 peak of one core, on each of ``threads`` threads."""
    lanes = target.hardware.lanes()
    function = module[PEAK]
    # One half keeps every accumulator at one: no denormals, which are slow, and nothing overflows.
    operand = tensor_of(aligned((ROWS, lanes), 0.5))
    out = tensor_of(aligned((threads, accumulators(target), lanes), 0.0))
    return lambda: function(operand, out)


def read_bytes(target: Target, threads: int = 1) -> int:
    """The bytes that one call of ``read_call`` reads: READ_BYTES or a little less, each thread its share."""
    return 4 * threads * read_rows(target, threads) * READ_ACCUMULATORS * target.hardware.lanes()


def read_call(module: Any, target: Target, threads: int = 1) -> Call:
    """Reading as many bytes as ``read_bytes`` says."""
    lanes = target.hardware.lanes()
    function = module[READ]
    source = tensor_of(aligned((threads, read_rows(target, threads), READ_ACCUMULATORS, lanes), 1.0))
    out = tensor_of(aligned((threads, READ_ACCUMULATORS, lanes), 0.0))
    return lambda: function(source, out)


def accumulators(target: Target) -> int:
    """Vectors that stay in registers throughout."""
    return target.hardware.vector_registers - 4


def read_rows(target: Target, threads: int) -> int:
    """Rows of READ_ACCUMULATORS vectors in each thread's share."""
    return READ_BYTES // (4 * threads * READ_ACCUMULATORS * target.hardware.lanes())


def aligned(shape: tuple[int, ...], value: float, *, has_huge_pages: bool = False) -> Array:
    """All elements ``value``, at the alignment that vectors want; in huge pages where there are any."""
    array = Guarded.empty(shape, np.dtype(np.float32), has_huge_pages=has_huge_pages).array
    array[...] = value
    return array
