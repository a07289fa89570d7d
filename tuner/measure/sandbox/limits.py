"""A limit on what a process may take for one thing, kept by the operating system."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """This process ends (SIGALRM) if the body takes longer than ``limit_s``, whatever it is doing. Main thread only."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
