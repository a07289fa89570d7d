"""How long the threads of a process wait for a core that something else has.

A kernel of several threads is as slow as the slowest of them, and threads that spin between two parallel loops yield
their core: a process of the lowest priority, which no fixed piece of work on one thread notices, makes a kernel take a
quarter longer, or twice as long. Linux counts what each thread waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Waited = Callable[[], float]
"""Gives seconds that grow while threads wait."""
THREADS = Path("/proc/self/task")
NANOSECONDS = 1e9


def waited_s() -> float:
    """The seconds that the threads of this process could run and had no core, added up over those that there are; 0
    where the system does not say (``schedstat`` in proc(5))."""
    total_ns = 0
    with suppress(OSError):
        for thread in THREADS.iterdir():
            # One that has ended meanwhile.
            with suppress(OSError):
                total_ns += int((thread / "schedstat").read_text().split()[1])
    return total_ns / NANOSECONDS


def never() -> float:
    """Of a process whose threads make nothing slower by waiting."""
    return 0.0


def slowed(pace: float, waited_s: float, seconds: float) -> float:
    """What an anchor took, and as much longer as threads waited for a core meanwhile: how disturbed a reading is."""
    return pace * (1 + max(0.0, waited_s) / seconds) if seconds > 0 else pace
