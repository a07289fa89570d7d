"""The seconds of a job that none of its searches is charged with, such as those in which they are opened."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner.program.job.jobspec import Budget


class Uncharged:
    """Keeps them out of what is given out to searches that run one after the other. ``began_s``: when the job began, by
    ``clock``; ``spent_s``: what its searches were charged with before."""

    def __init__(self, began_s: float, spent_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._from_s = clock, began_s - spent_s
        self._deducted_s = 0.0

    def without(self, budget: Budget, spent_s: float, *, shared: bool) -> Budget:
        """The part of ``budget`` to give out, ``spent_s`` of it being used. A search that does not share it keeps
        the whole, and is told apart by how much it is late."""
        self._deducted_s = self._seconds(spent_s) if shared else 0.0
        if budget.seconds is None:
            return budget
        return Budget(budget.trials, max(0.0, budget.seconds - self._deducted_s))

    def late_s(self, spent_s: float) -> float:
        """How much of an allowance is gone already, over what was done since it was given."""
        return max(0.0, self._seconds(spent_s) - self._deducted_s)

    def _seconds(self, spent_s: float) -> float:
        return max(0.0, self._clock() - self._from_s - spent_s)
