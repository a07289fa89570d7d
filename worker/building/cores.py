"""The cores of this machine, where builds and devices that measure share it: none is used by two at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.measure import Interrupted, never

LOOK_S = 0.2


class Cores:
    """``count`` cores, handed out in the order of the requests. For use from several threads.

    A measurement takes as many as its kernel has threads, a build one. Where devices measure on all of them, builds and
    measurements take turns.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = self.count
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, cores: int, interrupted: Callable[[], bool] = never) -> Iterator[None]:
        """Hold ``cores`` cores, all of them if there are fewer. Raises Interrupted."""
        taken = min(cores, self.count)
        self._take(taken, interrupted)
        try:
            yield
        finally:
            self.give(taken)

    def take_some(self, at_most: int, interrupted: Callable[[], bool] = never) -> int:
        """Wait for one core, and take up to ``at_most`` that are free then; how many. Raises Interrupted."""
        self._take(1, interrupted)
        return 1 + self.take_free(at_most - 1)

    def take_free(self, at_most: int) -> int:
        """Take up to ``at_most`` cores that nobody waits for; how many."""
        with self._changed:
            taken = 0 if self._waiting else max(0, min(at_most, self._free))
            self._free -= taken
            return taken

    def give(self, cores: int) -> None:
        """Give cores back."""
        with self._changed:
            self._free += cores
            self._changed.notify_all()

    def _take(self, cores: int, interrupted: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                # Who interrupts does not notify.
                while not self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= cores, LOOK_S):
                    if interrupted():
                        raise Interrupted("the cores are no longer wanted")
                self._free -= cores
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
