"""Splitting a job's budget over its search tasks: in proportion to their counts; what one leaves goes to later ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.program.jobspec import Budget


@dataclass(frozen=True, slots=True)
class Spending:
    """What a search task has used of the budget. ``count``: how often its workload occurs."""

    count: int
    trials: int
    spent_s: float
    done: bool


def share(budget: Budget, tasks: Sequence[Spending], position: int) -> Budget:
    """The budget of the task at ``position``, including what it has used already. Tasks are searched in order."""
    ended = [task for task in tasks if task.done]
    to_come = [task for index, task in enumerate(tasks) if not task.done and index > position]
    own = tasks[position]
    fraction = own.count / (own.count + sum(task.count for task in to_come))
    trials = seconds = None
    if budget.trials is not None:
        left = budget.trials - sum(task.trials for task in ended) - sum(task.trials for task in to_come)
        trials = max(0, math.ceil(left * fraction))
    if budget.seconds is not None:
        left_s = budget.seconds - sum(task.spent_s for task in ended) - sum(task.spent_s for task in to_come)
        seconds = max(0.0, left_s * fraction)
    return Budget(trials, seconds)
