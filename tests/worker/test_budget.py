from __future__ import annotations

import pytest

from tuner.program.jobspec import Budget
from worker.budget import Spending, share


def fresh(count: int = 1) -> Spending:
    return Spending(count, trials=0, spent_s=0.0, done=False)


def test_the_only_task_has_it_all() -> None:
    assert share(Budget(100, 60.0), [Spending(3, 40, 20.0, False)], 0) == Budget(100, 60.0)


def test_tasks_share_by_count() -> None:
    assert share(Budget(100, 60.0), [fresh(3), fresh(1), fresh(1)], 0) == Budget(60, 36.0)


def test_what_an_earlier_task_left_goes_to_later_ones() -> None:
    tasks = [Spending(1, 10, 5.0, True), fresh(1), fresh(2)]
    assert share(Budget(100, 65.0), tasks, 1) == Budget(30, 20.0)


def test_the_last_task_has_the_rest_whatever_the_rounding() -> None:
    tasks = [Spending(1, 34, 0.0, True), Spending(1, 33, 0.0, True), fresh(1)]
    assert share(Budget(100, None), tasks, 2).trials == 33


def test_an_overspent_budget_leaves_nothing() -> None:
    assert share(Budget(10, 5.0), [Spending(1, 12, 9.0, True), fresh()], 1) == Budget(0, 0.0)


@pytest.mark.parametrize("trials", [1, 7, 100])
def test_tasks_that_spend_their_shares_spend_the_budget(trials: int) -> None:
    tasks = [fresh(count) for count in (1, 5, 2)]
    for position, task in enumerate(tasks):
        own = share(Budget(trials, None), tasks, position).trials
        assert own is not None
        tasks[position] = Spending(task.count, own, 0.0, True)
    assert sum(task.trials for task in tasks) == trials


def test_no_trials_means_none_for_every_task() -> None:
    assert share(Budget(0, None), [fresh(), fresh()], 0).trials == 0
