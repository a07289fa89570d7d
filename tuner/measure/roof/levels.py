"""What a device reads from each cache and from memory, and what it issues: a roofline with all levels, and theory, need
it.

The machine code comes from tuner.measure.roof.kernels. Nothing here needs TVM's compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.measure.roof import READ_ACCUMULATORS, aligned, peak_call, peak_work
from tuner.measure.roof.issue import measure_issue
from tuner.measure.tensors import tensor_of
from tuner.measure.timing.caches import flush_arrays, flushed
from tuner.measure.timing.protocol import Timer, sampling
from tuner.program.target import Target
from tuner.program.target.calibration import MEMORY, STREAMS, Level, Levels

OF_MEMORY = (MEMORY, STREAMS)
SHARE = 0.5
"""The share of a level that is read at a time: it also holds what else the machine does."""
FLUSHED_BYTES = 2**26
"""What memory is read in, by all threads together. It is flushed from the caches before, whatever they hold: some have
half a gigabyte."""
CALL_BYTES = 2**23
"""The least bytes that one call reads: starting it must take no time beside."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reading ``bytes`` (all threads together, each its share: ``rows`` of READ_ACCUMULATORS vectors) ``turns`` times,
    under the name ``read_`` and the level's. Rows lie behind each other, or each of their vectors is a stream."""

    level: str
    rows: int
    turns: int
    bytes: int

    @property
    def name(self) -> str:
        return f"read_{self.level}"

    @property
    def is_of_memory(self) -> bool:
        """Whether what is read was flushed from caches, and lies in huge pages, as what libraries pack does."""
        return self.level in OF_MEMORY

    @property
    def axes(self) -> tuple[int, int]:
        """Rows and vectors, in the order in which they lie."""
        return (READ_ACCUMULATORS, self.rows) if self.level == STREAMS else (self.rows, READ_ACCUMULATORS)

    def place(self, row: Any, vector: Any) -> tuple[Any, Any]:
        """Where a vector of a row stands among ``axes``."""
        return (vector, row) if self.level == STREAMS else (row, vector)


def sweeps(target: Target, threads: int) -> tuple[Sweep, ...]:
    """One of each level, the nearest first. A third level that holds little more than the second ones is left out."""
    hardware = target.hardware
    own = {"L1": SHARE * hardware.l1d_bytes, "L2": SHARE * hardware.l2_bytes}
    of_thread = {name: each for name, each in own.items() if name == "L1" or each > hardware.l1d_bytes}
    shared = SHARE * hardware.l3_bytes / threads
    if shared > 2 * hardware.l2_bytes:
        of_thread["L3"] = shared
    of_thread |= dict.fromkeys(OF_MEMORY, FLUSHED_BYTES / threads)
    return tuple(_sweep(name, each, target, threads) for name, each in of_thread.items())


def _sweep(name: str, of_thread: float, target: Target, threads: int) -> Sweep:
    row_bytes = READ_ACCUMULATORS * target.hardware.vector_bytes
    rows = max(1, int(of_thread) // row_bytes)
    # What was flushed comes from memory once.
    turns = 1 if name in OF_MEMORY else max(1, CALL_BYTES // (rows * row_bytes))
    return Sweep(name, rows, turns, threads * rows * row_bytes)


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
    read = aligned((threads, *sweep.axes, lanes), 1.0, has_huge_pages=sweep.is_of_memory)
    source, flush = tensor_of(read), flush_arrays([read]) if sweep.is_of_memory else None
    out = tensor_of(aligned((threads, READ_ACCUMULATORS, lanes), 0.0))

    def call() -> object:
        return function(source, out)

    timed = timer.best(flushed(call, flush), sampling(call, flush))
    return Level(sweep.level, sweep.bytes, sweep.bytes * sweep.turns / timed.latency_s)
