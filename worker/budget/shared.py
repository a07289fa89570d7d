"""What the searches of a job share of its budget, one after the other or several at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner.program.job.jobspec import Budget
from worker.budget.split import ONE_LANE, Lanes, lane_budget
from worker.budget.wall_time import WallTime


class SharedBudget:
    """The budget of a job on as many lanes as there are now. ``spent_s``: what its searches have taken together.

    On several lanes all seconds are counted by the clock. On one lane they are those of the searches, and what none of
    them is charged with is kept out.
    """

    def __init__(self, budget: Budget, wall: WallTime, clock: Callable[[], float] = time.monotonic) -> None:
        self._whole = self._shared = budget
        self._wall, self._clock = wall, clock
        self._uncharged = Uncharged(clock(), 0.0, clock)
        self.count = 1
        """The number of lanes."""

    def begin(self, began_s: float, spent_s: float) -> None:
        """``began_s``: by the clock, from when on seconds count."""
        self._uncharged = Uncharged(began_s, spent_s, self._clock)

    def divide(self, count: int, spent_s: float) -> None:
        """Have ``count`` lanes from now on."""
        self.count = count
        self._shared = lane_budget(self._whole, count, spent_s, self._wall.begin(count, spent_s))
        if self._wall.kept_s() is not None:
            # Seconds before, such as those of a lost search, are in the wall time and must not count twice.
            self._uncharged = Uncharged(self._clock(), spent_s, self._clock)

    def lanes(self) -> Lanes:
        seconds, wall_s = self._whole.seconds, self._wall.kept_s()
        if self.count == 1 or seconds is None or wall_s is None:
            return ONE_LANE
        return Lanes(self.count, max(0.0, seconds - wall_s))

    def given_out(self, spent_s: float, *, tasks: int) -> Budget:
        """What ``tasks`` searches share."""
        if self.count > 1:
            return self._shared
        return self._uncharged.without(self._shared, spent_s, shared=tasks > 1)

    def late_s(self, spent_s: float) -> float:
        """How much of an allowance is gone already."""
        is_counted = self.count > 1 or self._whole.seconds is None
        return 0.0 if is_counted else self._uncharged.late_s(spent_s)


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
