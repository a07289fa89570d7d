"""The wall time that the searches of a job take."""

from __future__ import annotations

import time
from collections.abc import Callable


class WallTime:
    """Seconds since the first search of a job began, without those between two attempts.

    While one search runs at a time they are what the searches took together, which is stored with each, and nothing is
    kept here. Once several run at once they are by the clock. ``stored_s``: what an earlier attempt kept.
    """

    def __init__(self, stored_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = None if stored_s is None else clock() - stored_s

    def begin(self, lanes: int, spent_s: float) -> float:
        """The time taken before ``lanes`` searches run at once; ``spent_s`` by the searches, together."""
        if self._began_s is None and lanes > 1:
            self._began_s = self._clock() - spent_s
        kept_s = self.kept_s()
        return spent_s if kept_s is None else kept_s

    def kept_s(self) -> float | None:
        """The time taken by now; None where that is the time of the searches, one after the other."""
        return None if self._began_s is None else self._clock() - self._began_s
