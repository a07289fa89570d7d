from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.program.jobspec import Budget
from worker.budget import GUARANTEED, MIN_TRIALS, Standing, next_piece

BUDGETS = st.builds(Budget, st.none() | st.integers(0, 2000), st.none() | st.floats(1.0, 1000.0)).filter(
    lambda budget: budget != Budget(None, None)
)


def spent(budget: Budget, tasks: list[Standing], objective_s: float = 1e-3) -> list[Budget]:
    """Spend all pieces of a budget as they are given out, then end each task; what each was allowed."""
    while not all(task.is_done for task in tasks):
        piece = next_piece(budget, tasks)
        if piece is None:
            position = next(at for at, task in enumerate(tasks) if not task.is_done)
            tasks[position] = replace(tasks[position], is_done=True)
            continue
        position, allowance = piece
        task = tasks[position]
        assert allowance != task.allowance, "a piece of nothing"
        trials = task.trials if allowance.trials is None else max(task.trials, allowance.trials)
        seconds = task.spent_s if allowance.seconds is None else max(task.spent_s, allowance.seconds)
        tasks[position] = replace(
            task, allowance=allowance, trials=trials, spent_s=seconds, objective_s=task.objective_s or objective_s
        )
    return [task.allowance or Budget(0, 0.0) for task in tasks]


def test_the_only_task_has_it_all() -> None:
    assert next_piece(Budget(100, 60.0), [Standing(3)]) == (0, Budget(100, 60.0))
    assert next_piece(Budget(100, 60.0), [Standing(3, 40, 20.0)]) == (0, Budget(100, 60.0))
    assert next_piece(Budget(100, 60.0), [Standing(3, 40, 20.0, Budget(100, 60.0))]) is None


@given(BUDGETS, st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_all_of_a_budget_is_given_out_and_no_more(budget: Budget, counts: list[int]) -> None:
    allowed = spent(budget, [Standing(count) for count in counts])
    if budget.trials is not None:
        total = sum(each.trials or 0 for each in allowed)
        # With two limits one may be given out before the other.
        assert total <= budget.trials and (budget.seconds is not None or total == budget.trials)
    if budget.seconds is not None:
        total_s = sum(each.seconds or 0.0 for each in allowed)
        assert total_s <= budget.seconds + 0.01
        assert budget.trials is not None or total_s >= budget.seconds - 0.01


@given(BUDGETS, st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_no_task_is_starved(budget: Budget, counts: list[int]) -> None:
    allowed = spent(budget, [Standing(count) for count in counts])
    least = GUARANTEED / len(counts)
    for each in allowed:
        assert budget.trials is None or (each.trials or 0) >= int(least * budget.trials)
        assert budget.seconds is None or (each.seconds or 0.0) >= least * budget.seconds - 0.01


def test_tasks_have_their_minimum_in_order_before_any_has_more() -> None:
    tasks = [Standing(1), Standing(9), Standing(1)]
    given_out = []
    for _ in tasks:
        piece = next_piece(Budget(96, None), tasks)
        assert piece is not None
        position, allowance = piece
        given_out.append((position, allowance.trials))
        tasks[position] = replace(tasks[position], allowance=allowance, trials=16, spent_s=1.0, objective_s=1e-3)
    assert given_out == [(0, 16), (1, 16), (2, 16)]
    assert next_piece(Budget(96, None), tasks) == (1, Budget(32, None))


@pytest.mark.parametrize("budget", [Budget(1000, None), Budget(None, 1000.0)])
def test_what_takes_longest_in_the_model_gets_most(budget: Budget) -> None:
    tasks = [Standing(1, objective_s=1e-3), Standing(10, objective_s=1e-3), Standing(1, objective_s=2e-2)]
    small, frequent, slow = [each.trials or each.seconds or 0 for each in spent(budget, tasks)]
    assert small < frequent < slow


def test_what_still_falls_goes_on_before_what_does_not() -> None:
    steady = Standing(1, 100, 10.0, Budget(100, None), 1e-3)
    falling = replace(steady, saved_s=1e-4)
    assert next_piece(Budget(1000, None), [steady, falling]) == (1, Budget(162, None))


def test_a_second_is_worth_less_where_trials_take_long() -> None:
    quick, long = Standing(1, 100, 10.0, Budget(None, 50.0), 1e-3), Standing(1, 100, 40.0, Budget(None, 50.0), 1e-3)
    assert next_piece(Budget(None, 300.0), [long, quick]) == (1, Budget(None, 68.75))


def test_what_a_task_leaves_goes_to_the_others() -> None:
    done = Standing(1, 10, 5.0, Budget(50, None), 1e-3, is_done=True)
    assert next_piece(Budget(100, None), [done, Standing(1)]) == (1, Budget(90, None))


def test_what_earlier_workers_used_is_in_the_first_allowance() -> None:
    assert next_piece(Budget(96, None), [Standing(1, 30), Standing(1, 5)]) == (0, Budget(30, None))
    begun = Standing(1, 30, 1.0, Budget(30, None), 1e-3)
    assert next_piece(Budget(96, None), [begun, Standing(1, 5)]) == (1, Budget(24, None))


def test_less_than_a_round_is_left_to_whichever_task_is_last() -> None:
    tasks = [Standing(1, 50, 1.0, Budget(50, None), 1e-3), Standing(1, 50, 1.0, Budget(50, None), 1e-3)]
    budget = Budget(100 + MIN_TRIALS - 1, None)
    assert next_piece(budget, tasks) is None
    assert next_piece(budget, [replace(tasks[0], is_done=True), tasks[1]]) == (1, Budget(50 + MIN_TRIALS - 1, None))


@pytest.mark.parametrize("budget", [Budget(10, None), Budget(None, 5.0)])
def test_an_overspent_budget_leaves_nothing(budget: Budget) -> None:
    tasks = [Standing(1, 12, 9.0, is_done=True), Standing(1), Standing(1)]
    piece = next_piece(budget, tasks)
    assert piece is not None
    assert (piece[1].trials or 0, piece[1].seconds or 0.0) == (0, 0.0)


def test_no_trials_means_none_for_every_task() -> None:
    assert [each.trials for each in spent(Budget(0, None), [Standing(1), Standing(2)])] == [0, 0]


@pytest.mark.parametrize("budget", [Budget(96, None), Budget(None, 96.0)])
def test_what_has_not_been_timed_goes_on_first_up_to_an_even_share(budget: Budget) -> None:
    timed = Standing(1, 16, 16.0, Budget(16, 16.0), 1e-3)
    untimed = replace(timed, count=48, objective_s=None)
    piece = next_piece(budget, [timed, untimed, timed])
    assert piece is not None
    assert (piece[0], piece[1].trials or piece[1].seconds) == (1, 32)
    # Something is wrong with it: what is left goes to the others.
    hopeless = replace(untimed, trials=32, spent_s=32.0, allowance=piece[1])
    again = next_piece(budget, [timed, hopeless, timed])
    assert again is not None
    assert again[0] == 0


def test_a_piece_is_no_less_than_a_round() -> None:
    slow = Standing(1, 8, 20.0, Budget(None, 20.0), 1e-3, round_s=18.0)
    done = replace(slow, is_done=True)
    assert next_piece(Budget(None, 100.0), [slow, slow]) == (0, Budget(None, 38.0))
    assert next_piece(Budget(None, 64.0), [slow, done, slow]) is None
