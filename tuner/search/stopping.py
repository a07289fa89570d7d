"""When a search has to end, by its seconds or because somebody says so."""

from __future__ import annotations

from collections.abc import Callable

from tuner.search.budget import BudgetTracker


class Cancelled(Exception):
    """``should_stop`` said so; everything measured has been recorded."""


class Finishing(Exception):
    """``should_finish`` said so: no more trials, but the library of what was measured."""


class Stopping:
    """Asked by whatever takes a while in a search: ``check`` between two steps, ``is_due`` by what others run."""

    def __init__(
        self, should_stop: Callable[[], bool], should_finish: Callable[[], bool], budget: BudgetTracker
    ) -> None:
        self._should_stop, self._should_finish, self._budget = should_stop, should_finish, budget
        self._finish_by_s: float | None = None

    @property
    def is_finishing(self) -> bool:
        """Whether the search is cancelled, and only its library is wanted."""
        return self._finish_by_s is not None

    @property
    def ends_in_s(self) -> float:
        """Seconds until the search must be over: its budget's, or those of a search that is cancelled."""
        if self._finish_by_s is not None:
            return self._finish_by_s - self._budget.elapsed_s
        return self._budget.seconds_left()

    def finish_within(self, seconds: float) -> None:
        """The search is cancelled: from here on what takes longer than ``seconds`` is given up."""
        self._finish_by_s = self._budget.elapsed_s + seconds

    def check(self) -> None:
        """Raises Cancelled, Finishing."""
        if self._is_cancelled():
            raise Cancelled
        if self._is_to_finish():
            raise Finishing

    def is_due(self) -> bool:
        """Whether ``check`` would raise: what is running on the device is not waited for."""
        return self._is_cancelled() or self._is_to_finish()

    def _is_cancelled(self) -> bool:
        return self._should_stop() or (self._finish_by_s is not None and self._budget.elapsed_s > self._finish_by_s)

    def _is_to_finish(self) -> bool:
        return self._finish_by_s is None and self._should_finish()
