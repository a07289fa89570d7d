"""Splitting a job's budget over its search tasks while they run: a minimum for each, the rest by expected gain.

After the task scheduler of Ansor (Zheng et al., OSDI 2020, section 6.2): what the next trial of a task is expected to
save is guessed from what its last ones saved, and from what there is to save at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.program.jobspec import Budget

GUARANTEED = 0.5
"""The part of the budget that is split evenly, before anything is known of the tasks."""
STEPS = 16
"""About so many pieces the budget is given out in, once each task has its minimum."""
MIN_TRIALS, MIN_SECONDS = 16, 4.0
"""The least that a piece is: a round of a search takes about that."""
RECENT = 0.5
"""The weight of what a task's last trials saved, against what as many again are expected to save."""
POTENTIAL = 0.1
"""The part of a task's time that as many trials again are expected to save, whatever the last ones did: Ansor takes all
of it, which leaves no weight to what was seen."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a search task stands. ``count``: how often its workload occurs in the job.

    ``allowance``: what it may use of the job's budget, with what it has used; None: nothing was given to it yet.
    ``objective_s``: the weighted time with its best kernels; None before any was timed. ``saved_s``: by how much its
    last piece of the budget lessened that, for each trial. ``round_s``: what a round of its search takes. ``is_done``:
    it has its library.
    """

    count: int
    trials: int = 0
    spent_s: float = 0.0
    allowance: Budget | None = None
    objective_s: float | None = None
    saved_s: float = 0.0
    round_s: float = 0.0
    is_done: bool = False

    @property
    def reserved(self) -> Budget:
        """What of the job's budget nobody else may use."""
        if self.is_done or self.allowance is None:
            return Budget(self.trials, self.spent_s)
        return Budget(max(self.trials, self.allowance.trials or 0), max(self.spent_s, self.allowance.seconds or 0.0))

    def gain(self, *, per_second: bool) -> float:
        """What one more trial, or one more second, is expected to save in a run of the job's workloads, in seconds."""
        if not self.objective_s:
            return 0.0
        trials, used = max(1, self.trials), self.spent_s if per_second else self.trials
        trials_for_one = trials / used if used else 1.0
        expected_s = POTENTIAL * self.objective_s / trials
        return self.count * trials_for_one * (RECENT * self.saved_s + (1 - RECENT) * expected_s)


def next_piece(budget: Budget, tasks: Sequence[Standing]) -> tuple[int, Budget] | None:
    """Which task goes on, and its whole allowance then; None where what is left is too little for another round.

    Tasks get their minimum in order. A single one that is left gets all that is left.
    """
    going = [position for position, task in enumerate(tasks) if not task.is_done]
    if not going:
        return None
    left = _left(budget, tasks)
    if len(going) == 1:
        position = going[0]
        return None if _is_spent(left) and tasks[position].allowance else (position, _plus(tasks[position], left))
    for position in going:
        if tasks[position].allowance is None:
            waiting = sum(tasks[other].allowance is None for other in going)
            return position, _minimum(budget, left, tasks[position], waiting, len(tasks))
    for position in going:
        # Nothing can be expected of what has not been timed: up to an even share it goes on first.
        if tasks[position].objective_s is None:
            even = _even(budget, left, tasks[position], len(tasks))
            if even != tasks[position].allowance:
                return position, even
    position = max(going, key=lambda each: tasks[each].gain(per_second=budget.trials is None))
    piece = _piece(budget, left, tasks[position])
    return None if piece is None else (position, _plus(tasks[position], piece))


def _left(budget: Budget, tasks: Sequence[Standing]) -> Budget:
    """What no task has used, or may use."""
    reserved = [task.reserved for task in tasks]
    trials = seconds = None
    if budget.trials is not None:
        trials = max(0, budget.trials - sum(each.trials or 0 for each in reserved))
    if budget.seconds is not None:
        seconds = max(0.0, budget.seconds - sum(each.seconds or 0.0 for each in reserved))
    return Budget(trials, seconds)


def _minimum(budget: Budget, left: Budget, task: Standing, waiting: int, tasks: int) -> Budget:
    """The first allowance of a task, where ``waiting`` of all ``tasks`` have none: their parts of GUARANTEED, or of all
    where the rest would be less than a piece. What earlier workers used is in it."""
    trials = seconds = None
    if budget.trials is not None and left.trials is not None:
        part = GUARANTEED if (1 - GUARANTEED) * budget.trials >= MIN_TRIALS else 1.0
        most = task.trials + math.ceil(left.trials / waiting)
        trials = max(task.trials, min(math.ceil(part * budget.trials / tasks), most))
    if budget.seconds is not None and left.seconds is not None:
        part = GUARANTEED if (1 - GUARANTEED) * budget.seconds >= MIN_SECONDS else 1.0
        most_s = task.spent_s + left.seconds / waiting
        seconds = max(task.spent_s, min(part * budget.seconds / tasks, most_s))
    return Budget(trials, seconds)


def _even(budget: Budget, left: Budget, task: Standing, tasks: int) -> Budget:
    """The allowance of one of ``tasks`` if all had the same, as far as there is that much left."""
    has = task.reserved
    trials = seconds = None
    if budget.trials is not None and left.trials is not None:
        used = has.trials or 0
        trials = max(used, min(budget.trials // tasks, used + left.trials))
    if budget.seconds is not None and left.seconds is not None:
        used_s = has.seconds or 0.0
        seconds = max(used_s, min(budget.seconds / tasks, used_s + left.seconds))
    return Budget(trials, seconds)


def _piece(budget: Budget, left: Budget, task: Standing) -> Budget | None:
    """The next piece of what is left, a round of the task's at least; None where too little is left for any."""
    trials = seconds = None
    if budget.trials is not None and left.trials is not None:
        trials = min(left.trials, max(MIN_TRIALS, budget.trials // STEPS))
        if trials < MIN_TRIALS:
            return None
    if budget.seconds is not None and left.seconds is not None:
        if left.seconds < max(MIN_SECONDS, task.round_s):
            return None
        seconds = min(left.seconds, max(MIN_SECONDS, budget.seconds / STEPS, task.round_s))
    return Budget(trials, seconds)


def _is_spent(left: Budget) -> bool:
    # A rounding error of seconds is none.
    return left.trials == 0 or (left.seconds is not None and left.seconds < 1e-3)


def _plus(task: Standing, more: Budget) -> Budget:
    """The allowance of a task with that much more."""
    has = task.reserved
    return Budget(
        None if more.trials is None else (has.trials or 0) + more.trials,
        None if more.seconds is None else (has.seconds or 0.0) + more.seconds,
    )
