"""Splitting a job's budget over its search tasks while they run: a minimum for each, the rest by expected gain.

After the task scheduler of Ansor (Zheng et al., OSDI 2020, section 6.2): what the next trial of a task is expected to
save is guessed from what its last ones saved, and from what there is to save at all. Where the budget is too small for
all tasks, those of which least is expected are not searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.program.job.budget_plan import MIN_SECONDS, MIN_TRIALS, Cost, affordable
from tuner.program.job.jobspec import Budget
from worker.budget.progress import TaskProgress

GUARANTEED = 0.5
"""The part of the budget that is split evenly among what is searched, before anything is known of it."""
STEPS = 16
"""The number of pieces, about, in which the budget is given out once each task has its minimum."""
MIN_MORE_S = 0.5
"""Less than that is not given to a search that has timed nothing yet."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many searches run at once, and what is left of the job's wall time, in seconds."""

    count: int = 1
    left_s: float = math.inf


ONE_LANE = Lanes()
"""A single lane. Its time is that of the searches, one after the other, which adds up to the job's seconds."""


def lane_budget(budget: Budget, lanes: int, spent_s: float, wall_s: float) -> Budget:
    """The budget to give out where ``lanes`` searches run at once: each second of the job is one of each lane.

    ``spent_s``: what the searches have taken; ``wall_s``: what the job has taken, which is less if some ran at once.
    """
    if budget.seconds is None or (lanes == 1 and wall_s == spent_s):
        return budget
    return Budget(budget.trials, spent_s + lanes * max(0.0, budget.seconds - wall_s))


def next_piece(budget: Budget, tasks: Sequence[TaskProgress], lanes: Lanes = ONE_LANE) -> tuple[int, Budget] | None:
    """Which task goes on, and its whole allowance then; None where what is left is too little for another round, or is
    expected to do more for those that are running.

    ``budget`` is that of all lanes together. Tasks get their minimum in order of what is expected of them, as many as
    can be searched; the others are kept time for their libraries. A single one that is left gets all that is left.
    """
    tasks = _at_pace(tasks)
    going = [position for position, task in enumerate(tasks) if not (task.is_done or task.is_ending)]
    if all(tasks[position].is_running for position in going):
        return None
    if len(going) == 1:
        return _all_that_is_left(budget, tasks, going[0], lanes)
    begun = [position for position in going if tasks[position].allowance is not None]
    waiting = [position for position in going if tasks[position].allowance is None]
    waiting.sort(key=lambda position: -_worth(budget, tasks[position]))
    chosen = _chosen(budget, tasks, waiting)
    tasks = _with_libraries_kept(budget, tasks, [at for at in waiting if at not in chosen])
    left, searched = _left(budget, tasks), len(tasks) - len(waiting) + len(chosen)
    if chosen:
        minimum = _minimum(budget, left, tasks, chosen, searched, lanes)
        return chosen[0], _capped(minimum, tasks, chosen[0], lanes)
    for position in begun:
        # Nothing can be expected of what has not been timed: up to an even share it goes on first.
        if tasks[position].objective_s is None and not tasks[position].is_running:
            even = _capped(_even(budget, left, tasks[position], searched), tasks, position, lanes)
            if _is_more(even, tasks[position]):
                return position, even
    return _by_gain(budget, left, tasks, begun, lanes)


def _all_that_is_left(
    budget: Budget, tasks: Sequence[TaskProgress], position: int, lanes: Lanes
) -> tuple[int, Budget] | None:
    """All the budget that is left, for the only task that goes on; None where that is nothing, and where it is too
    little to begin a search that the job can do without."""
    task, rest = tasks[position], _fitting(_left(budget, tasks), tasks, position, lanes)
    if task.allowance is None and budget.trials != 0 and len(tasks) > 1 and not _chosen(budget, tasks, [position]):
        return None
    is_spent = _is_spent(rest) and (task.allowance is not None or budget.trials != 0)
    return None if is_spent else (position, _plus(task, rest))


def _worth(budget: Budget, task: TaskProgress) -> float:
    """The expected saving of a task that is not timed, over what its first round takes of the budget."""
    return task.potential_s / (task.cost.round_s if budget.trials is None else 1.0)


def _chosen(budget: Budget, tasks: Sequence[TaskProgress], waiting: Sequence[int]) -> list[int]:
    """The waiting tasks whose minimum what is left is enough for; the first one gets whatever there is."""
    if budget.trials == 0:
        return list(waiting)
    chosen = [waiting[at] for at in affordable(_left(budget, tasks), [tasks[at].cost for at in waiting])]
    has_begun = any(task.allowance is not None or task.trials or task.is_done for task in tasks)
    return chosen if chosen or has_begun else list(waiting[:1])


def _at_pace(tasks: Sequence[TaskProgress]) -> list[TaskProgress]:
    """The tasks, all of whose costs are as much higher than was expected as those of rounds are on this machine.

    Libraries are built where kernels of a round are: without time for several kernels they end with one.
    """
    paces = [task.round_s / task.cost.round_s for task in tasks if task.round_s]
    pace = max(1.0, sum(paces) / len(paces)) if paces else 1.0
    return [replace(task, cost=Cost(pace * task.cost.round_s, pace * task.cost.library_s)) for task in tasks]


def _with_libraries_kept(budget: Budget, tasks: Sequence[TaskProgress], others: Sequence[int]) -> list[TaskProgress]:
    """The tasks, the ``others`` with allowances for their libraries alone: as much less of these as there is less."""
    wanted_s = sum(tasks[at].cost.library_s for at in others)
    share = min(1.0, (_left(budget, tasks).seconds or 0.0) / wanted_s) if wanted_s else 0.0

    def kept(task: TaskProgress) -> TaskProgress:
        return replace(task, allowance=Budget(task.trials, task.spent_s + share * task.cost.library_s))

    return [kept(task) if at in others else task for at, task in enumerate(tasks)]


def next_library(tasks: Sequence[TaskProgress], idle: Sequence[int]) -> int:
    """Which of the ``idle`` tasks ends first where there is no piece for any: what was not searched, so that the others
    may have what it leaves."""
    return min(idle, key=lambda position: tasks[position].allowance is not None)


def ending_allowance(budget: Budget, tasks: Sequence[TaskProgress], position: int, lanes: Lanes = ONE_LANE) -> Budget:
    """The allowance of a task with its library, which is made next: what it was promised, or as much less of it as all
    that were promised something get, where some have used more than their part."""
    tasks = _at_pace(tasks)
    task = tasks[position]
    allowance = task.allowance or Budget(None if budget.trials is None else task.trials, budget.seconds)
    if budget.seconds is None or allowance.seconds is None:
        return allowance
    left_s = max(0.0, budget.seconds - sum(each.spent_s for each in tasks))
    promised_s = sum(max(each.cost.library_s, each.unspent_s) for each in tasks if not each.is_done)
    share = min(1.0, min(left_s, lanes.count * lanes.left_s) / promised_s)
    return Budget(allowance.trials, task.spent_s + share * max(task.cost.library_s, task.unspent_s))


def is_worth_waiting(budget: Budget, tasks: Sequence[TaskProgress]) -> bool:
    """Whether a lane without a piece had better wait for what the running searches find: there are trials for another
    piece. Where seconds are limited, they pass."""
    is_running = any(task.is_running for task in tasks)
    return is_running and budget.seconds is None and (_left(budget, tasks).trials or 0) >= MIN_TRIALS


def _by_gain(
    budget: Budget, left: Budget, tasks: Sequence[TaskProgress], begun: Sequence[int], lanes: Lanes
) -> tuple[int, Budget] | None:
    """The next piece for the task of which most is expected, among those that have begun.

    Trials are kept for the better task even if that one is running: lanes share them by gain, not by speed. It is taken
    to go on as it did. Seconds cannot be kept: where they are limited, a lane goes on with the best that is idle.
    """
    by_trials = budget.seconds is None
    if by_trials and any(task.is_running and task.objective_s is None for task in tasks):
        return None
    ahead = {
        position: replace(task, trials=task.reserved.trials or 0) if task.is_running else task
        for position, task in ((position, tasks[position]) for position in begun)
        if by_trials or not task.is_running
    }
    while ahead:
        position = max(ahead, key=lambda each: ahead[each].gain(per_second=budget.trials is None))
        piece = _piece(budget, _fitting(left, tasks, position, lanes), ahead[position])
        if piece is None or not ahead[position].is_running:
            return None if piece is None else (position, _plus(tasks[position], piece))
        more = piece.trials or 0
        ahead[position] = replace(ahead[position], trials=ahead[position].trials + more)
        left = Budget((left.trials or 0) - more, left.seconds)
    return None


def _capacity_s(tasks: Sequence[TaskProgress], position: int, lanes: Lanes) -> float:
    """The time that a task may take from now on, so that all that was promised still ends within the wall time.

    Lanes that are never idle while there is work end it within ``(sum - longest) / count + longest`` (Graham, "Bounds
    on multiprocessing timing anomalies", 1969). On one lane that is the sum.
    """
    others = [task.unspent_s for at, task in enumerate(tasks) if at != position and not task.is_done]
    if len(others) < lanes.count:
        return lanes.left_s
    total, longest = sum(others), max(others)
    capacity_s = lanes.left_s - total / lanes.count
    return capacity_s if capacity_s >= longest else lanes.count * (lanes.left_s - longest) - total + longest


def _fitting(left: Budget, tasks: Sequence[TaskProgress], position: int, lanes: Lanes) -> Budget:
    """The part of ``left`` that a task can still use in the wall time that is left."""
    if left.seconds is None:
        return left
    more_s = _capacity_s(tasks, position, lanes) - tasks[position].unspent_s
    return Budget(left.trials, max(0.0, min(left.seconds, more_s)))


def _capped(allowance: Budget, tasks: Sequence[TaskProgress], position: int, lanes: Lanes) -> Budget:
    """An allowance, cut to what a task can use in the wall time that is left; never less than it has."""
    if allowance.seconds is None:
        return allowance
    task = tasks[position]
    most_s = max(task.reserved.seconds or 0.0, task.spent_s + _capacity_s(tasks, position, lanes))
    return Budget(allowance.trials, min(allowance.seconds, most_s))


def _left(budget: Budget, tasks: Sequence[TaskProgress]) -> Budget:
    """The part of the budget that no task has used, or may use."""
    reserved = [task.reserved for task in tasks]
    trials = seconds = None
    if budget.trials is not None:
        trials = max(0, budget.trials - sum(each.trials or 0 for each in reserved))
    if budget.seconds is not None:
        seconds = max(0.0, budget.seconds - sum(each.seconds or 0.0 for each in reserved))
    return Budget(trials, seconds)


def _minimum(
    budget: Budget, left: Budget, tasks: Sequence[TaskProgress], chosen: Sequence[int], searched: int, lanes: Lanes
) -> Budget:
    """The first allowance of the first of those that are ``chosen`` to be searched next: its part of GUARANTEED, or of
    all where the rest would be less than a piece; a round at least; no more than leaves as much for the others.

    ``searched``: of all tasks, how many are. What earlier workers used is in it.
    """
    task = tasks[chosen[0]]
    trials = seconds = None
    if budget.trials is not None and left.trials is not None:
        part = GUARANTEED if (1 - GUARANTEED) * budget.trials >= MIN_TRIALS else 1.0
        wanted = max(MIN_TRIALS, math.ceil(part * budget.trials / searched)) if budget.trials else 0
        trials = max(task.trials, min(wanted, task.trials + math.ceil(left.trials / len(chosen))))
    if budget.seconds is not None and left.seconds is not None:
        part = GUARANTEED if (1 - GUARANTEED) * budget.seconds >= MIN_SECONDS else 1.0
        least_s = [tasks[at].cost.round_s + tasks[at].cost.library_s for at in chosen]
        wanted_s = max(least_s[0], part * budget.seconds / searched)
        # As much for each that waits still ends in time, by the bound of _capacity_s.
        promised_s = sum(other.unspent_s for other in tasks if not other.is_done)
        in_time_s = (lanes.count * lanes.left_s - promised_s) / (len(chosen) - 1 + lanes.count)
        # What the others need stays, but for what the first one needs itself.
        own_s = max(left.seconds - sum(least_s[1:]), min(least_s[0], left.seconds / len(chosen)))
        most_s = task.spent_s + max(0.0, min(own_s, in_time_s))
        seconds = max(task.spent_s, min(wanted_s, most_s))
    return Budget(trials, seconds)


def _even(budget: Budget, left: Budget, task: TaskProgress, tasks: int) -> Budget:
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


def _piece(budget: Budget, left: Budget, task: TaskProgress) -> Budget | None:
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


def _is_more(allowance: Budget, task: TaskProgress) -> bool:
    """Whether it leaves a task enough beyond what it has to begin anything with: of a budget that shrinks meanwhile a
    little less or more could be given out for ever."""
    has = task.reserved
    if allowance.trials is not None and allowance.trials <= (has.trials or 0):
        return False
    return allowance.seconds is None or allowance.seconds >= (has.seconds or 0.0) + MIN_MORE_S


def _is_spent(left: Budget) -> bool:
    # A rounding error of seconds is none.
    return left.trials == 0 or (left.seconds is not None and left.seconds < 1e-3)


def _plus(task: TaskProgress, more: Budget) -> Budget:
    """The allowance of a task with that much more."""
    has = task.reserved
    return Budget(
        None if more.trials is None else (has.trials or 0) + more.trials,
        None if more.seconds is None else (has.seconds or 0.0) + more.seconds,
    )
