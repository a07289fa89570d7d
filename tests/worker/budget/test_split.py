from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.program.job.budget_plan import LIBRARY_S, MIN_TRIALS, USUAL, BudgetPlan, Cost
from tuner.program.job.jobspec import Budget
from worker.budget.progress import TaskProgress
from worker.budget.split import (
    GUARANTEED,
    ONE_LANE,
    Lanes,
    ending_allowance,
    is_worth_waiting,
    lane_budget,
    next_library,
    next_piece,
)

BUDGETS = st.builds(Budget, st.none() | st.integers(0, 2000), st.none() | st.floats(1.0, 1000.0)).filter(
    lambda budget: budget != Budget(None, None)
)


def spent(budget: Budget, tasks: list[TaskProgress], objective_s: float = 1e-3) -> list[Budget]:
    """Spend all pieces of a budget as they are given out, then end each task, those that were not searched first; what
    each was allowed."""
    while not all(task.is_done for task in tasks):
        piece = next_piece(budget, tasks)
        if piece is None:
            position = next_library(tasks, [at for at, task in enumerate(tasks) if not task.is_done])
            task = tasks[position]
            spent_s = task.spent_s if task.allowance else min(task.cost.library_s, (budget.seconds or 0.0) / len(tasks))
            tasks[position] = replace(task, is_done=True, spent_s=spent_s)
            continue
        position, allowance = piece
        task = tasks[position]
        assert allowance != task.allowance, "a piece of nothing"
        trials = task.trials if allowance.trials is None else max(task.trials, allowance.trials)
        seconds = task.spent_s if allowance.seconds is None else max(task.spent_s, allowance.seconds)
        tasks[position] = replace(
            task, allowance=allowance, trials=trials, spent_s=seconds, objective_s=task.objective_s or objective_s
        )
    return [task.allowance or Budget(0, task.spent_s) for task in tasks]


def is_searched(allowance: Budget) -> bool:
    return bool(allowance.seconds if allowance.trials is None else allowance.trials)


def test_the_only_task_has_it_all() -> None:
    assert next_piece(Budget(100, 60.0), [TaskProgress(3)]) == (0, Budget(100, 60.0))
    assert next_piece(Budget(100, 60.0), [TaskProgress(3, 40, 20.0)]) == (0, Budget(100, 60.0))
    assert next_piece(Budget(100, 60.0), [TaskProgress(3, 40, 20.0, Budget(100, 60.0))]) is None


@given(BUDGETS, st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_all_of_a_budget_is_given_out_and_no_more(budget: Budget, counts: list[int]) -> None:
    allowed = spent(budget, [TaskProgress(count) for count in counts])
    if budget.trials is not None:
        total = sum(each.trials or 0 for each in allowed)
        # With two limits one may be given out before the other.
        assert total <= budget.trials and (budget.seconds is not None or total == budget.trials)
    if budget.seconds is not None:
        total_s = sum(each.seconds or 0.0 for each in allowed)
        assert total_s <= budget.seconds + 0.01
        assert budget.trials is not None or total_s >= budget.seconds - 0.01


COSTS = st.builds(Cost, st.floats(4.0, 40.0), st.floats(3.0, 30.0))


@given(BUDGETS, st.lists(st.tuples(st.integers(1, 50), st.just(USUAL) | COSTS), min_size=1, max_size=12))
def test_as_many_are_searched_as_the_plan_says_and_none_of_them_is_starved(
    budget: Budget, known: list[tuple[int, Cost]]
) -> None:
    tasks = [TaskProgress(count, run_s=1e-3, cost=cost) for count, cost in known]
    worth = sorted(tasks, key=lambda task: -task.count / (task.cost.round_s if budget.trials is None else 1.0))
    plan = BudgetPlan(tuple(task.cost for task in worth), budget)
    allowed = spent(budget, list(tasks))
    searched = [at for at, each in enumerate(allowed) if is_searched(each)]
    assert len(searched) >= plan.affordable or budget.trials == 0
    for at in searched:
        assert budget.trials is None or (allowed[at].trials or 0) >= min(MIN_TRIALS, budget.trials)
        least_s = tasks[at].cost.round_s + tasks[at].cost.library_s
        assert budget.seconds is None or plan.affordable == 1 or (allowed[at].seconds or 0.0) >= least_s - 0.01


def test_a_cheap_search_leaves_a_costly_one_what_it_needs() -> None:
    cheap, costly = TaskProgress(1, run_s=1.0), TaskProgress(1, run_s=1e-3, cost=Cost(20.0, 15.0))
    assert all(map(is_searched, spent(Budget(None, 45.0), [cheap, costly])))


def test_what_pieces_leave_for_the_last_search_is_not_short_of_a_rounding_error() -> None:
    usual, long = Cost(4.0, 3.0), Cost(5.0, 17.658878555010702)
    known = [(1, usual), (1, usual), (1, long), (9, Cost(36.0, 30.0)), *[(1, usual)] * 4, (1, Cost(5.0, 30.0))]
    tasks = [TaskProgress(count, run_s=1e-3, cost=cost) for count, cost in known]
    assert all(map(is_searched, spent(Budget(None, 184.625), tasks)))


def test_a_budget_that_is_spent_when_a_worker_takes_over_begins_no_search() -> None:
    ended = TaskProgress(1, 16, 8.0)
    assert next_piece(Budget(32, None), [TaskProgress(1), ended, ended, TaskProgress(1)]) is None
    assert next_piece(Budget(None, 16.0), [TaskProgress(1), ended, ended, TaskProgress(1)]) is None


def test_the_last_task_is_not_begun_with_less_than_a_round() -> None:
    done = TaskProgress(1, 16, 20.0, Budget(None, 20.0), 1e-3, is_done=True)
    assert next_piece(Budget(None, 23.0), [done, TaskProgress(1)]) is None
    assert next_piece(Budget(None, 30.0), [done, TaskProgress(1)]) == (1, Budget(None, 10.0))


@pytest.mark.parametrize("budget", [Budget(32, None), Budget(None, 27.0), Budget(32, 27.0)])
def test_where_not_all_can_be_searched_what_most_is_expected_of_is(budget: Budget) -> None:
    heavy, frequent, light = TaskProgress(1, run_s=1e-2), TaskProgress(12, run_s=4e-3), TaskProgress(1, run_s=1e-4)
    known = replace(frequent, known=200)
    allowed = spent(budget, [light, heavy, known, frequent, light, light])
    assert [is_searched(each) for each in allowed] == [False, True, False, True, False, False]
    if budget.seconds is not None:
        libraries = [each.seconds for each in allowed if not is_searched(each)]
        assert len(libraries) == 4 and min(filter(None, libraries)) >= LIBRARY_S - 0.01
        assert sum(each.seconds or 0.0 for each in allowed) <= budget.seconds + 0.01


def test_libraries_are_kept_as_much_more_time_as_rounds_take() -> None:
    budget = Budget(None, 60.0)
    begun = TaskProgress(9, 16, 20.0, Budget(None, 30.0), 1e-3, round_s=3 * USUAL.round_s, run_s=1e-2)
    waiting = TaskProgress(1, run_s=1e-4)
    # 30 s are left: for a round and a library of one, and the library of the other one.
    assert next_piece(budget, [begun, waiting, waiting]) == (1, Budget(None, 3 * (USUAL.round_s + LIBRARY_S)))
    ending = ending_allowance(budget, [begun, waiting, waiting], 2)
    assert ending.seconds == pytest.approx(3 * LIBRARY_S)
    usual = replace(begun, round_s=USUAL.round_s)
    assert ending_allowance(budget, [usual, waiting, waiting], 2).seconds == pytest.approx(LIBRARY_S)


def test_what_a_search_leaves_is_enough_for_the_next_one() -> None:
    done = TaskProgress(1, 16, 2.0, Budget(None, 8.0), 1e-3, is_done=True)
    assert next_piece(Budget(None, 12.0), [replace(done, spent_s=8.0), TaskProgress(1), TaskProgress(1)]) is None
    assert next_piece(Budget(None, 12.0), [done, TaskProgress(1), TaskProgress(1)]) == (1, Budget(None, 7.0))


def test_a_search_that_costs_more_has_that_or_is_left_for_others_that_fit() -> None:
    costly = TaskProgress(1, run_s=1.0, cost=Cost(20.0, 8.0))
    usual = TaskProgress(1, run_s=1e-3)
    # 28 of 60 s for the first, and 7 s are kept for each of the others.
    assert next_piece(Budget(None, 60.0), [usual, costly, usual]) == (1, Budget(None, 28.0))
    # 30 s are not enough for it beside the libraries: 8 s are kept for its own.
    piece = next_piece(Budget(None, 30.0), [usual, costly, usual])
    assert piece is not None and piece[0] == 0
    assert spent(Budget(None, 30.0), [usual, costly, usual])[1] == Budget(0, 8.0)


def test_a_slow_machine_lets_fewer_be_searched() -> None:
    begun = TaskProgress(1, 16, 12.0, Budget(None, 12.0), 1e-3)
    tasks = [begun, TaskProgress(1), TaskProgress(1), TaskProgress(1)]
    assert next_piece(Budget(None, 30.0), tasks) == (1, Budget(None, 7.0))
    piece = next_piece(Budget(None, 30.0), [replace(begun, round_s=10.0), *tasks[1:]])
    assert piece is None


def test_tasks_have_their_minimum_in_order_before_any_has_more() -> None:
    tasks = [TaskProgress(1), TaskProgress(9), TaskProgress(1)]
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
    tasks = [TaskProgress(1, objective_s=1e-3), TaskProgress(10, objective_s=1e-3), TaskProgress(1, objective_s=2e-2)]
    small, frequent, slow = [each.trials or each.seconds or 0 for each in spent(budget, tasks)]
    assert small < frequent < slow


def test_what_still_falls_goes_on_before_what_does_not() -> None:
    steady = TaskProgress(1, 100, 10.0, Budget(100, None), 1e-3)
    falling = replace(steady, saved_s=1e-4)
    assert next_piece(Budget(1000, None), [steady, falling]) == (1, Budget(162, None))


def test_a_second_is_worth_less_where_trials_take_long() -> None:
    quick = TaskProgress(1, 100, 10.0, Budget(None, 50.0), 1e-3)
    long = TaskProgress(1, 100, 40.0, Budget(None, 50.0), 1e-3)
    assert next_piece(Budget(None, 300.0), [long, quick]) == (1, Budget(None, 68.75))


def test_what_a_task_leaves_goes_to_the_others() -> None:
    done = TaskProgress(1, 10, 5.0, Budget(50, None), 1e-3, is_done=True)
    assert next_piece(Budget(100, None), [done, TaskProgress(1)]) == (1, Budget(90, None))


def test_what_earlier_workers_used_is_in_the_first_allowance() -> None:
    assert next_piece(Budget(96, None), [TaskProgress(1, 30), TaskProgress(1, 5)]) == (0, Budget(30, None))
    begun = TaskProgress(1, 30, 1.0, Budget(30, None), 1e-3)
    assert next_piece(Budget(96, None), [begun, TaskProgress(1, 5)]) == (1, Budget(24, None))


def test_less_than_a_round_is_left_to_whichever_task_is_last() -> None:
    tasks = [TaskProgress(1, 50, 1.0, Budget(50, None), 1e-3), TaskProgress(1, 50, 1.0, Budget(50, None), 1e-3)]
    budget = Budget(100 + MIN_TRIALS - 1, None)
    assert next_piece(budget, tasks) is None
    assert next_piece(budget, [replace(tasks[0], is_done=True), tasks[1]]) == (1, Budget(50 + MIN_TRIALS - 1, None))


@pytest.mark.parametrize("budget", [Budget(10, None), Budget(None, 5.0)])
def test_an_overspent_budget_leaves_nothing(budget: Budget) -> None:
    tasks = [TaskProgress(1, 12, 9.0, is_done=True), TaskProgress(1), TaskProgress(1)]
    assert next_piece(budget, tasks) is None
    ending = ending_allowance(budget, tasks, 1)
    assert (ending.trials or 0, ending.seconds or 0.0) == (0, 0.0)


def test_no_trials_means_none_for_every_task() -> None:
    assert [each.trials for each in spent(Budget(0, None), [TaskProgress(1), TaskProgress(2)])] == [0, 0]


@pytest.mark.parametrize("budget", [Budget(96, None), Budget(None, 96.0)])
def test_what_has_not_been_timed_goes_on_first_up_to_an_even_share(budget: Budget) -> None:
    timed = TaskProgress(1, 16, 16.0, Budget(16, 16.0), 1e-3)
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
    slow = TaskProgress(1, 8, 20.0, Budget(None, 20.0), 1e-3, round_s=18.0)
    done = replace(slow, is_done=True)
    assert next_piece(Budget(None, 100.0), [slow, slow]) == (0, Budget(None, 38.0))
    assert next_piece(Budget(None, 64.0), [slow, done, slow]) is None


# -- several at once --------------------------------------------------------------------------------------------------
RUNNING = TaskProgress(1, 20, 20.0, Budget(40, 40.0), 1e-3, is_running=True)
IDLE = replace(RUNNING, is_running=False)


def test_a_task_that_is_running_is_left_out_and_its_allowance_is_kept() -> None:
    assert next_piece(Budget(None, 200.0), [RUNNING, IDLE], Lanes(2, 80.0)) == (1, Budget(None, 52.5))
    assert next_piece(Budget(None, 200.0), [RUNNING, RUNNING], Lanes(2, 80.0)) is None
    # 80 of 100 trials are allowed, and 20 are another piece.
    assert next_piece(Budget(100, None), [RUNNING, replace(IDLE, count=2)], Lanes(2)) == (1, Budget(56, None))


def test_trials_are_kept_for_the_better_task_that_is_running() -> None:
    better = replace(RUNNING, count=100)
    assert next_piece(Budget(112, None), [better, IDLE], Lanes(2)) is None
    assert is_worth_waiting(Budget(112, None), [better, IDLE])
    # Seconds cannot be kept.
    piece = next_piece(Budget(112, 200.0), [better, IDLE], Lanes(2, 80.0))
    assert piece is not None and piece[0] == 1
    assert not is_worth_waiting(Budget(112, 200.0), [better, IDLE])


def test_trials_are_not_given_by_gain_before_those_that_run_are_timed() -> None:
    unknown = replace(RUNNING, objective_s=None)
    assert next_piece(Budget(512, None), [unknown, IDLE], Lanes(2)) is None
    assert next_piece(Budget(512, 200.0), [unknown, IDLE], Lanes(2, 80.0)) is not None


def test_nothing_is_worth_waiting_for_when_nothing_is_left_or_nobody_runs() -> None:
    assert not is_worth_waiting(Budget(80 + MIN_TRIALS - 1, None), [RUNNING, IDLE])
    assert is_worth_waiting(Budget(80 + MIN_TRIALS, None), [RUNNING, IDLE])
    assert not is_worth_waiting(Budget(512, None), [replace(RUNNING, is_running=False, is_ending=True), IDLE])


def test_no_allowance_passes_the_end_of_the_wall_time() -> None:
    # There are 100 s of lane time, and 10 of the clock.
    assert next_piece(Budget(None, 200.0), [RUNNING, IDLE], Lanes(2, 25.0)) == (1, Budget(None, 45.0))
    assert next_piece(Budget(None, 200.0), [replace(IDLE, is_done=True), IDLE], Lanes(2, 25.0)) == (
        1,
        Budget(None, 45.0),
    )
    # Three that are promised 20 s each leave 5 s, on two lanes, for the first: 20 and 25 on one, 20 on the other.
    tasks = [IDLE, RUNNING, IDLE]
    assert next_piece(Budget(None, 400.0), tasks, Lanes(2, 45.0)) == (0, Budget(None, 45.0))


def test_what_there_is_to_give_out_on_several_lanes() -> None:
    assert lane_budget(Budget(64, None), 4, 10.0, 10.0) == Budget(64, None)
    assert lane_budget(Budget(64, 60.0), 1, 10.0, 10.0) == Budget(64, 60.0)
    assert lane_budget(Budget(64, 60.0), 4, 0.0, 0.0) == Budget(64, 240.0)
    # Two searches took 40 s of 20: there are 40 left, on each lane.
    assert lane_budget(Budget(64, 60.0), 1, 40.0, 20.0) == Budget(64, 80.0)
    assert lane_budget(Budget(64, 60.0), 3, 40.0, 20.0) == Budget(64, 160.0)
    assert lane_budget(Budget(64, 60.0), 3, 90.0, 70.0) == Budget(64, 90.0)


@dataclass
class Lane:
    """A turn in the simulation below: it ends at ``end_s``."""

    position: int
    since_s: float
    end_s: float
    allowance: Budget
    trials: int
    is_ending: bool


@dataclass
class Job:
    """Simulates a job on lanes. Searches use some of what they are allowed, and keep a third for their libraries."""

    budget: Budget
    tasks: list[TaskProgress]
    lanes: int
    chance: random.Random
    now_s: float = 0.0
    turns: dict[int, Lane] = field(default_factory=dict)
    most: int = 0
    """Turns at once."""

    def run(self) -> None:
        self.shared = lane_budget(self.budget, self.lanes, 0.0, 0.0)
        while not all(task.is_done for task in self.tasks):
            while len(self.turns) < self.lanes and self._begin():
                self.most = max(self.most, len(self.turns))
            assert self.turns, "all lanes wait for each other"
            self._end(min(self.turns.values(), key=lambda turn: turn.end_s))

    def standings(self) -> list[TaskProgress]:
        result = list(self.tasks)
        for position, turn in self.turns.items():
            result[position] = replace(
                result[position],
                allowance=turn.allowance,
                spent_s=result[position].spent_s + self.now_s - turn.since_s,
                is_running=not turn.is_ending,
                is_ending=turn.is_ending,
            )
        return result

    def _begin(self) -> bool:
        tasks = self.standings()
        idle = [at for at, task in enumerate(tasks) if not task.is_done and at not in self.turns]
        if not idle:
            return False
        left_s = float("inf") if self.budget.seconds is None else self.budget.seconds - self.now_s
        piece = next_piece(self.shared, tasks, ONE_LANE if self.lanes == 1 else Lanes(self.lanes, left_s))
        if piece is None and is_worth_waiting(self.shared, tasks):
            return False
        if piece is None:
            self._make_library(idle[0])
        else:
            self._explore(*piece)
        return True

    def _explore(self, position: int, allowance: Budget) -> None:
        task, share = self.tasks[position], self.chance.random()
        more = max(0, (task.trials + 50 if allowance.trials is None else allowance.trials) - task.trials)
        takes_s = 10.0 if allowance.seconds is None else max(0.0, 0.65 * allowance.seconds - task.spent_s)
        self._turn(position, share * takes_s, allowance, task.trials + int(share * more), is_ending=False)

    def _make_library(self, position: int) -> None:
        task = self.tasks[position]
        allowance = task.allowance or Budget(0, 0.0)
        left_s = 10.0 if allowance.seconds is None else max(0.0, allowance.seconds - task.spent_s)
        self._turn(position, self.chance.choice([0.5, 1.0]) * left_s, allowance, task.trials, is_ending=True)

    def _turn(self, position: int, takes_s: float, allowance: Budget, trials: int, *, is_ending: bool) -> None:
        end_s = self.now_s + takes_s
        self.turns[position] = Lane(position, self.now_s, end_s, allowance, trials, is_ending)

    def _end(self, turn: Lane) -> None:
        self.now_s = turn.end_s
        task = self.tasks[turn.position]
        self.tasks[turn.position] = replace(
            task,
            trials=turn.trials,
            spent_s=task.spent_s + turn.end_s - turn.since_s,
            allowance=turn.allowance,
            objective_s=task.objective_s or (1e-3 if turn.trials and self.chance.random() < 0.9 else None),
            is_done=turn.is_ending,
        )
        del self.turns[turn.position]
        if not turn.is_ending and self.chance.random() < 0.1:
            # Nothing helps any more.
            self._make_library(turn.position)


@given(BUDGETS, st.lists(st.integers(1, 50), min_size=1, max_size=10), st.integers(1, 8), st.integers(0, 10**6))
def test_lanes_keep_within_the_budget_and_starve_nobody(
    budget: Budget, counts: list[int], lanes: int, seed: int
) -> None:
    job = Job(budget, [TaskProgress(count) for count in counts], min(lanes, len(counts)), random.Random(seed))
    job.run()
    allowed = [task.allowance for task in job.tasks]
    assert job.most == job.lanes
    for each in allowed:
        assert each is not None
        if budget.trials is not None and BudgetPlan((USUAL,) * len(counts), budget).affordable == len(counts):
            assert (each.trials or 0) >= int(GUARANTEED * budget.trials / len(counts))
    if budget.trials is not None:
        assert sum(task.trials for task in job.tasks) <= budget.trials
    if budget.seconds is not None:
        assert job.now_s <= budget.seconds + 0.01
        assert sum(task.spent_s for task in job.tasks) <= job.lanes * budget.seconds + 0.01
