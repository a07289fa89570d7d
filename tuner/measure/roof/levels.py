"""What a device reads from each cache and from memory, and what it issues: a roofline with all levels, and theory, need
it.

The machine code comes from tuner.measure.roof.kernels. Nothing here needs TVM's compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.measure.roof import READ_ACCUMULATORS, READ_BYTES, aligned, peak_call, peak_work
from tuner.measure.roof.issue import measure_issue
from tuner.measure.tensors import tensor_of
from tuner.measure.timing.protocol import Timer, sampling
from tuner.program.target import Target
from tuner.program.target.calibration import Level, Levels

SHARE = 0.5
"""The share of a level that is read at a time: it also holds what else the machine does."""
BEYOND, MAX_BYTES = 4, 2**28
"""The buffer that memory is read in, in sizes of the last cache, and its largest size: of all threads together."""
CALL_BYTES = 2**23
"""The least bytes that one call reads: starting it must take no time beside."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reading ``bytes`` (all threads together, each its share: ``rows`` of READ_ACCUMULATORS vectors) ``turns`` times,
    under the name ``read_`` and the level's."""

    level: str
    rows: int
    turns: int
    bytes: int

    @property
    def name(self) -> str:
        return f"read_{self.level}"


def sweeps(target: Target, threads: int) -> tuple[Sweep, ...]:
    """One of each level, the nearest first. A third level that holds little more than the second ones is left out, and
    memory where MAX_BYTES may fit into caches."""
    hardware = target.hardware
    own = {"L1": SHARE * hardware.l1d_bytes, "L2": SHARE * hardware.l2_bytes}
    of_thread = {name: each for name, each in own.items() if name == "L1" or each > hardware.l1d_bytes}
    shared = SHARE * hardware.l3_bytes / threads
    if shared > 2 * hardware.l2_bytes:
        of_thread["L3"] = shared
    memory = max(READ_BYTES, BEYOND * hardware.l3_bytes)
    if min(memory, MAX_BYTES) >= 2 * hardware.l3_bytes:
        of_thread["memory"] = min(memory, MAX_BYTES) / threads
    return tuple(_sweep(name, each, target, threads) for name, each in of_thread.items())


def _sweep(name: str, of_thread: float, target: Target, threads: int) -> Sweep:
    row_bytes = READ_ACCUMULATORS * target.hardware.vector_bytes
    rows = max(1, int(of_thread) // row_bytes)
    return Sweep(name, rows, max(1, CALL_BYTES // (rows * row_bytes)), threads * rows * row_bytes)


def measure_levels(module: Any, target: Target, threads: int, timer: Timer) -> Levels:
    """A second or so, the best of several samples each. ``module`` is the loaded binary for this very target and number
    of threads."""
    peak = peak_call(module, target, threads)
    flops_per_s = peak_work(target, threads) / timer.best(peak, sampling(peak)).latency_s
    found = (_level(module, each, target, threads, timer) for each in sweeps(target, threads))
    clock_hz, issued_per_s = measure_issue(module, target, threads, timer)
    return Levels(flops_per_s, tuple(found), clock_hz, issued_per_s)


def _level(module: Any, sweep: Sweep, target: Target, threads: int, timer: Timer) -> Level:
    lanes, function = target.hardware.lanes(), module[sweep.name]
    source = tensor_of(aligned((threads, sweep.rows, READ_ACCUMULATORS, lanes), 1.0))
    out = tensor_of(aligned((threads, READ_ACCUMULATORS, lanes), 0.0))

    def call() -> object:
        return function(source, out)

    timed = timer.best(call, sampling(call))
    return Level(sweep.level, sweep.bytes, sweep.bytes * sweep.turns / timed.latency_s)
