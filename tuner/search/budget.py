"""How much of a search's budget is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner.program.job.jobspec import Budget
from tuner.search.summary import EndedBy

FINAL_SHARE = 0.35
"""The largest share of a budget of trials or seconds that is reserved for finalists, build and verification."""
FINAL_SECONDS = 30.0
VERIFY_SHARE = 0.15
"""The largest share of the seconds that verifying the library at more than its least shapes may take."""

FIT_SHARE, FIT_S = 0.05, 10.0
"""The share of the seconds that is reserved for fitting a dispatcher to a range of many shapes, and the most."""
COMPARE_SHARE, COMPARE_S = 0.1, 15.0
"""The share of the seconds that is reserved for timing the library in turns with others, and the most that it takes."""


class BudgetTracker:
    """How much of a budget is left to a search, which may be paused while others of its job go on.

    ``spent_s``: wall time that earlier workers have charged to it; ``after_s``: what is left for whoever goes on with
    the library. The clock runs from the beginning until ``pause``.
    """

    def __init__(
        self,
        budget: Budget,
        spent_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        after_s: float = 0.0,
    ) -> None:
        self.budget = budget
        self._clock = clock
        self._spent_s, self._since_s = spent_s, clock()
        self._is_paused = False
        self._after_s = after_s

    def allow(self, budget: Budget, after_s: float = 0.0) -> None:
        """Replace the budget, what was used of it included."""
        self.budget, self._after_s = budget, after_s

    def pause(self) -> None:
        """Charge no time until ``go_on``."""
        self._spent_s, self._is_paused = self.elapsed_s, True

    def go_on(self) -> None:
        if self._is_paused:
            self._since_s, self._is_paused = self._clock(), False

    @property
    def elapsed_s(self) -> float:
        return self._spent_s + (0.0 if self._is_paused else self._clock() - self._since_s)

    @property
    def whole_seconds(self) -> float:
        """The seconds of the budget, spent ones included; infinite where they are not limited."""
        return float("inf") if self.budget.seconds is None else self.budget.seconds

    @property
    def after_s(self) -> float:
        """Seconds of the budget that are for somebody else: gone before the search, or for what comes after it."""
        return self._after_s

    def seconds_left(self, reserve_s: float = 0.0) -> float:
        if self.budget.seconds is None:
            return float("inf")
        return self.budget.seconds - self._after_s - reserve_s - self.elapsed_s

    def trials_left(self, done: int, reserve: int = 0) -> int:
        if self.budget.trials is None:
            return 1_000_000
        return self.budget.trials - reserve - done

    def final_trials(self, wanted: int) -> int:
        """How many of the trials ``wanted`` for the finalists are reserved for them."""
        return min(wanted, int(FINAL_SHARE * self.budget.trials)) if self.budget.trials else 0

    @property
    def final_seconds(self) -> float:
        """The most seconds that are reserved for the finalists, the build and the verification."""
        return min(FINAL_SECONDS, FINAL_SHARE * self.budget.seconds) if self.budget.seconds else 0.0

    @property
    def fit_seconds(self) -> float:
        """The seconds that are reserved for the dispatcher where a range has many shapes."""
        return min(FIT_S, FIT_SHARE * self.budget.seconds) if self.budget.seconds else 0.0

    @property
    def compare_seconds(self) -> float:
        """The seconds that are reserved for the final comparison."""
        return min(COMPARE_S, COMPARE_SHARE * self.budget.seconds) if self.budget.seconds else 0.0

    @property
    def verify_seconds(self) -> float:
        """The most seconds that are reserved for verifying at more than what is never left out."""
        return VERIFY_SHARE * self.budget.seconds if self.budget.seconds else float("inf")

    def ended_by(self, trials_left: int, reserve_s: float) -> EndedBy | None:
        """What is spent of it but for the reserves; None while there is some of both left."""
        if trials_left <= 0:
            return EndedBy.TRIALS
        return EndedBy.SECONDS if self.seconds_left(reserve_s) <= 0 else None
