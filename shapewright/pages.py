"""Where packed constants lie: one after the other in large blocks of huge pages, which a kernel reads from end to end.

A model's weights of some hundred kilobytes each have thousands of ordinary pages, more than a core translates without
walking tables. What dies gives its pages back, so that constants that are packed anew do not pile up beside one that
stays.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import weakref
from typing import TYPE_CHECKING, Any

from shapewright import forks
from tuner.schedule.layout import LINE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 64 << 20
"""Of address space: pages are the process's when they are first written to."""
HUGE_BYTES = 2 << 20
"""Blocks start at a multiple of it: the size of huge pages of x86-64, and of AArch64 with pages of 4 KiB."""


class _Block:
    """Memory that is handed out from its start to its end."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _advise(self._map, "MADV_HUGEPAGE", 0, len(self._map))
        self._at = -_address(self._map) % HUGE_BYTES

    def take(self, size: int) -> Any:
        """So many bytes from a cache line on; None if there are no more. They are the taker's as long as the object
        lives, which arrays keep alive. (Of a memoryview they keep what it is of.)"""
        start = self._at + -self._at % LINE_BYTES
        if start + size > len(self._map):
            return None
        self._at = start + size
        taken = (ctypes.c_ubyte * size).from_buffer(self._map, start)
        weakref.finalize(taken, _give_back, self._map, start, start + size).atexit = False
        return taken


def placed(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of ``array`` without gaps, that starts on a cache line. Safe to call from several threads."""
    import numpy as np  # noqa: PLC0415 - which not everybody who loads libraries has

    copy = np.frombuffer(_taken(max(1, array.nbytes)), np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _taken(size: int) -> Any:
    global _block  # noqa: PLW0603 - one for the process
    with _lock:
        taken = _block.take(size) if _block is not None else None
        if taken is None:
            new = _Block(max(BLOCK_BYTES, size))
            taken = new.take(size)
            # What is left of the other one stays untouched, and so is no memory.
            _block = new
    return taken


def _give_back(block: mmap.mmap, start: int, end: int) -> None:
    """Give back the whole pages between; those that neighbours lie in, too, stay until the block goes."""
    first, last = start + -start % mmap.PAGESIZE, end - end % mmap.PAGESIZE
    if first < last:
        _advise(block, "MADV_DONTNEED", first, last - first)


def _advise(block: mmap.mmap, advice: str, start: int, size: int) -> None:
    number = getattr(mmap, advice, None)
    if number is None:
        return
    try:
        block.madvise(number, start, size)
    except OSError as error:
        # A kernel without huge pages says so: ordinary ones hold the same.
        if error.errno != errno.EINVAL:
            raise


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(block))


_lock = forks.lock()
_block: _Block | None = None
