"""How long the threads of a process wait for a core that something else has.

A kernel of several threads is as slow as the slowest of them. A process of the lowest priority beside it, of which the
anchor (protocol.py) shows nothing, may make it take a quarter longer, or twice as long (docs/decisions/0128). Linux
counts what each thread waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Waited = Callable[[], float]
"""Gives the seconds that threads have waited so far."""
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
    """What is timed runs on no thread of this process, or nobody asks."""
    return 0.0


def slowed(anchor_s: float, waiting_s: float, reading_s: float) -> float:
    """How disturbed a reading of ``reading_s`` seconds is: the time of its anchor, longer by the share of the reading
    that threads spent waiting for a core."""
    return anchor_s * (1 + max(0.0, waiting_s) / reading_s) if reading_s > 0 else anchor_s
