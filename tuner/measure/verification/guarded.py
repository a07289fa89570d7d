"""Arrays in the middle of poisoned memory: what a kernel reads or writes beside its operands shows."""

from __future__ import annotations

import errno
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.schedule.packing import row_major

Array = NDArray[Any]
ALIGNMENT = 64
GUARD = 1024
GUARD_ROWS = 16
"""Elements of poison before and after every operand: GUARD, or GUARD_ROWS rows where that is more, since what goes
wrong at a ragged end is mostly a tile's surplus rows."""
POISON: Mapping[int, Any] = {
    1: np.uint8(0xA5),
    2: np.uint16(0x7FDB),
    4: np.uint32(0x7FC0BEEF),
    8: np.uint64(0x7FF8BEEF5EEDBEEF),
}
"""The poison by bytes of an element. A quiet NaN of every float type, with a pattern of its own: computed with, it
spreads; overwritten, it shows. A large number as an integer, neither true nor false as a bool."""


HUGE_BYTES = 2 << 20
"""The size of huge pages of x86-64, and of AArch64 with pages of 4 KiB."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """An array ``skew`` elements past an address aligned to ALIGNMENT bytes, and the poison on both sides of it."""

    array: Array
    before: Array
    after: Array
    region: Array
    """All three in a row."""

    @staticmethod
    def empty(shape: Sequence[int], dtype: np.dtype[Any], skew: int = 0, *, has_huge_pages: bool = False) -> Guarded:
        """Poisoned throughout: what is never written is wrong. ``has_huge_pages``: where there are any."""
        size, aligned = math.prod(shape), ALIGNMENT // dtype.itemsize
        # A multiple of the alignment, so that the array starts where it is meant to.
        guard = -(-max(GUARD, GUARD_ROWS * (shape[-1] if shape else 1)) // aligned) * aligned
        poison = POISON[dtype.itemsize]
        number = size + 2 * guard + aligned + skew
        whole = _in_huge_pages(number, poison.dtype) if has_huge_pages else np.empty(number, poison.dtype)
        whole[...] = poison
        skip = (-whole.ctypes.data % ALIGNMENT) // dtype.itemsize + skew
        start = skip + guard
        end = start + size
        array = row_major(whole[start:end].view(dtype).reshape(tuple(shape)))
        return Guarded(array, whole[skip:start], whole[end : end + guard], whole[skip : end + guard])

    @staticmethod
    def copy_of(values: Array, skew: int = 0, *, has_huge_pages: bool = False) -> Guarded:
        guarded = Guarded.empty(values.shape, values.dtype, skew, has_huge_pages=has_huge_pages)
        guarded.array[...] = values
        return guarded

    def damage(self, of: str = "its output") -> str | None:
        """Where the memory around the array has been written to; None if it is whole."""
        for name, guard in (("before the start", self.before[::-1]), ("past the end", self.after)):
            hit = np.flatnonzero(guard != POISON[guard.itemsize])
            if hit.size:
                return f"{hit.size} elements {name} of {of} were overwritten, the nearest {hit[0] + 1} away"
        return None


def _in_huge_pages(number: int, dtype: np.dtype[Any]) -> Array:
    """An array that begins where a huge page does, and whose last one is its own, too."""
    size = -(-number * dtype.itemsize // HUGE_BYTES) * HUGE_BYTES
    memory = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if (advice := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        try:
            memory.madvise(advice)
        except OSError as error:
            # A kernel without huge pages says so: ordinary ones hold the same.
            if error.errno != errno.EINVAL:
                raise
    bytes_of = np.frombuffer(memory, np.uint8)
    start = -bytes_of.ctypes.data % HUGE_BYTES
    return bytes_of[start : start + number * dtype.itemsize].view(dtype)


def bits(array: Array) -> Array:
    """The elements as unsigned integers of the same size: equal where every bit is."""
    return array.view(POISON[array.itemsize].dtype)
