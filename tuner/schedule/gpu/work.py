"""What a kernel has to do, as equal programs, and how long a GPU is expected to take for it.

An SM gets ``programs`` of a launch, ``at once`` as many as registers, shared memory and warps allow. A step takes the
largest of what its arithmetic takes, of what its bytes take from L2, and of the latency of a load over the stages in
flight (a p-norm, so that near ties cost more). Constants are shares of the hardware's rates
(tuner.program.target.cuda), fitted to kernels that an H100 and an H200 timed (docs/decisions/0105).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.target.cuda import REGISTERS, WARP, Gpu

Floats = NDArray[np.float64]
LAUNCH_S, LATENCY_S, PROLOGUE_S = 0.6e-6, 0.8e-6, 0.1e-6
"""Of a launch, of a load, and of a program before its first step."""
STEP_S, POINTERS_STEP_S = 0.12e-6, 0.18e-6
"""Of a step beside its work, and of one whose tiles come by pointers."""
BYTES_PER_CYCLE, BYTES_BY_DESCRIPTOR = 53.0, 64.0
"""From L2 to an SM in a cycle."""
TILES_STORED, LINES_STORED = 17.0, 23.0
"""Bytes that an SM stores in a cycle of results of instructions on tiles, and of whole lines."""
L2_BYTES_PER_CYCLE = 45.0
MEMORY_SHARE = 0.87
"""Of the bandwidth of the memory that is reached."""
CACHED_SHARE = 0.7
"""Of L2, which operands fill that calls find there again."""
NORM = 16.0
MAX_REGISTERS = 255
"""Of a thread."""
RESERVED_SHARED = 1024
"""Bytes of shared memory that the hardware takes of each block."""


@dataclass(frozen=True)
class Work:
    """What launches have to do, each number [kernels, shapes] or what is broadcast to it.

    ``programs`` of ``steps``, in the mean where they are unlike, and of ``longest`` steps the longest of these;
    ``head_s``: of a program before its first load; ``step_s``: the arithmetic of a step, alone on an SM; ``beside_s``:
    what it takes beside that; ``loaded``: its bytes from L2, at ``rate`` bytes in a cycle; ``stored``: bytes at the end
    of a program, at ``store_rate``; ``distinct``: bytes of all operands, once; ``at_once``: programs that an SM holds,
    0 where one does not fit; ``filling``: those that keep all its tensor cores busy; ``in_flight``: steps whose loads
    are under way; ``more_s``: of further launches.
    """

    programs: Floats
    steps: Floats
    step_s: Floats
    beside_s: Floats
    loaded: Floats
    stored: Floats
    store_rate: float
    distinct: Floats
    at_once: Floats
    in_flight: Floats
    rate: Floats
    more_s: Floats
    filling: Floats | float = 1.0
    longest: Floats | None = None
    head_s: float = PROLOGUE_S

    def seconds(self, gpu: Gpu, is_flushed: bool = False) -> Floats:
        """[kernels, shapes]; inf for what does not fit. ``is_flushed``: calls find their operands in memory."""
        clock = gpu.clock_mhz * 1e6
        by_sm = np.ceil(self.programs / gpu.sms)
        at_once = np.minimum(np.maximum(self.at_once, 1.0), np.maximum(by_sm, 1.0))
        waves, rest = np.floor(by_sm / at_once), by_sm % at_once
        last = np.where(rest > 0, self._program_s(rest, self.steps, clock), 0.0)
        sm = waves * self._program_s(at_once, self.steps, clock) + last
        if self.longest is not None:
            sm = np.maximum(sm, self._program_s(np.ones(1), self.longest, clock))
        traffic = self.programs * self.steps * self.loaded / (L2_BYTES_PER_CYCLE * clock * gpu.sms)
        is_of_memory = is_flushed | (self.distinct > CACHED_SHARE * gpu.l2_bytes)
        memory = np.where(is_of_memory, self.distinct / (MEMORY_SHARE * gpu.memory_bytes_s), 0.0)
        total = LAUNCH_S + _norm(sm, traffic, memory) + self.more_s
        return np.asarray(np.where(self.at_once > 0, total, math.inf))

    def _program_s(self, count: Floats, steps: Floats, clock: float) -> Floats:
        """``count`` programs of so many ``steps`` at once on an SM."""
        loading = count * self.loaded / (self.rate * clock)
        busy = np.maximum(count, self.filling) * self.step_s + self.beside_s
        step = _norm(busy, loading, LATENCY_S / np.maximum(self.in_flight, 1.0))
        # A tile is free for the next load when its products are done: with two, and no other program, the SM waits.
        step = step + np.where((self.in_flight <= 1) & (count <= 1), np.minimum(busy, loading), 0.0)
        head = self.head_s + LATENCY_S + loading
        return np.asarray(head + steps * step + count * self.stored / (self.store_rate * clock))


def _norm(*values: Floats) -> Floats:
    return np.asarray(sum(value**NORM for value in values) ** (1 / NORM))


@lru_cache(maxsize=65536)
def programs_at_once(gpu: Gpu, warps: int, registers: int, shared: int) -> int:
    """Programs that are on an SM at once; 0 where one does not fit. ``registers``: of a thread; ``shared``: bytes."""
    arch = gpu.architecture
    if registers > MAX_REGISTERS or shared > arch.block_shared_bytes:
        return 0
    by_registers = REGISTERS // (math.ceil(registers * WARP / 256) * 256 * warps)
    by_shared = arch.shared_bytes // (shared + RESERVED_SHARED)
    return max(min(by_registers, by_shared, arch.warps // warps, arch.blocks), 0)
