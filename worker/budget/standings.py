"""Where the search tasks of a job stand, and the turns that lanes take with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from tuner.program.job.jobspec import Budget
from tuner.search.tuning import Cancelled, Finishing
from worker.budget.progress import TaskProgress, Turn
from worker.budget.shared import SharedBudget
from worker.budget.split import ending_allowance, is_worth_waiting, next_library, next_piece

LOOK_S = 0.5
"""How soon a lane that waits for others notices that the worker is stopping."""


class Standings:
    """Gives the lanes of a job their turns, by the budget that its tasks share. For use from several threads.

    ``should_stop`` is true once no more is wanted of the lanes: a lane that waits raises Cancelled then.
    """

    def __init__(self, budget: SharedBudget, clock: Callable[[], float], should_stop: Callable[[], bool]) -> None:
        self.budget = budget
        self._clock, self._should_stop = clock, should_stop
        self._tasks: list[TaskProgress] = []
        """The progress of each task as of its last turn."""
        self._turns: dict[int, Turn] = {}
        """The turns that are being taken, by position."""
        self._changed = threading.Condition()
        """Guards all of this; is notified when a lane has done something."""
        self._is_ending = False
        self.is_failing = False
        """A lane raised something else than that the job is cancelled: the others stop at once."""

    def begin(self, tasks: Sequence[TaskProgress]) -> None:
        """Begin anew, with the tasks as they stand, when no lane is running."""
        self._tasks = list(tasks)
        self.reset()

    def reset(self) -> None:
        """Forget the turns of lanes that have ended."""
        self._turns.clear()
        self._is_ending = self.is_failing = False

    def __iter__(self) -> Iterator[TaskProgress]:
        return iter(self._tasks)

    def __getitem__(self, position: int) -> TaskProgress:
        return self._tasks[position]

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def undone(self) -> list[int]:
        """The positions of tasks without a library."""
        return [position for position, task in enumerate(self._tasks) if not task.is_done]

    @property
    def spent_s(self) -> float:
        """Seconds that all searches have spent, as of the last turn of each."""
        return sum(task.spent_s for task in self._tasks)

    @property
    def trials(self) -> int:
        return sum(task.trials for task in self._tasks)

    @property
    def in_turn(self) -> list[int]:
        """The positions of the tasks that lanes have now."""
        return list(self._turns)

    @property
    def late_s(self) -> float:
        """How much of an allowance is gone already."""
        return self.budget.late_s(self.spent_s)

    def next_turn(self) -> Turn | None:
        """The next piece of the budget for a task that no lane has, or its library where there is no piece. Waits where
        the others may leave some. None where the others have all that are left, and where one of them has raised."""
        with self._changed:
            while not self._is_ending:
                if self._should_stop():
                    raise Cancelled
                tasks = self._now()
                idle = [at for at, task in enumerate(tasks) if not task.is_done and at not in self._turns]
                if not idle:
                    return None
                budget = self._given_out()
                piece = next_piece(budget, tasks, self.budget.lanes())
                if piece is not None or not is_worth_waiting(budget, tasks):
                    return self._begin_turn(*(piece or (next_library(tasks, idle), None)))
                self._changed.wait(LOOK_S)
        return None

    def end_turn(self, position: int, task: TaskProgress, following: Turn | None = None) -> None:
        """A turn has left its task so, or is the ``following`` one now."""
        with self._changed:
            self._tasks[position] = task
            self._turns.pop(position, None)
            if following is not None:
                self._turns[position] = following
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """A lane has raised: no turn is taken any more."""
        with self._changed:
            self._is_ending = True
            self.is_failing |= not isinstance(error, Finishing)
            self._changed.notify_all()

    def _begin_turn(self, position: int, allowance: Budget | None) -> Turn:
        has = allowance or ending_allowance(self._given_out(), self._now(), position, self.budget.lanes())
        self._turns[position] = turn = Turn(position, has, self._clock(), is_ending=allowance is None)
        return turn

    def _now(self) -> list[TaskProgress]:
        """Where the tasks stand, those with a turn as far as it has come."""
        now_s, turns = self._clock(), self._turns
        return [
            turns[position].standing(task, now_s) if position in turns else task
            for position, task in enumerate(self._tasks)
        ]

    def _given_out(self) -> Budget:
        return self.budget.given_out(self.spent_s, tasks=len(self._tasks))
