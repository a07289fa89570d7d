"""What a budget buys for several workloads."""

from __future__ import annotations

import pytest

from tuner.program.job.budget_plan import LIBRARY_S, MIN_SECONDS, USUAL, BudgetPlan, Cost, run_s
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar

TOLD = {
    (17, None, 100.0): "17 workloads in 100 s: 5 will not be searched; 510 s recommended",
    (17, None, 600.0): "17 workloads in 600 s: all will be searched",
    (3, 32, None): "3 workloads in 32 trials: 1 will not be searched; 192 trials recommended",
    (3, 500, 12.0): "3 workloads in 12 s and 500 trials: 2 will not be searched; 90 s recommended",
    (7, None, 1.0): "7 workloads in 1 s: 6 will not be searched; 210 s recommended",
    (2, 0, None): "2 workloads in 0 trials: libraries of theory, nothing is searched",
    (1, 8, None): "1 workload in 8 trials: all will be searched; 64 trials recommended",
}


@pytest.mark.parametrize("case", TOLD)
def test_a_plan_says_what_is_not_searched_and_what_is_recommended(case: tuple[int, int | None, float | None]) -> None:
    searches, trials, seconds = case
    assert str(BudgetPlan((USUAL,) * searches, Budget(trials, seconds))) == TOLD[case]


def test_a_workload_with_large_weights_takes_longer_to_be_searched() -> None:
    def cost(n: int) -> Cost:
        task = SearchTask("dense", {"m": "T", "n": n, "k": 768}, (ShapeVar("T", range(1, 129)),))
        return Cost.of(task)

    small, vocabulary = cost(768), cost(50257)
    assert small == Cost(pytest.approx(MIN_SECONDS, abs=0.1), pytest.approx(LIBRARY_S, abs=0.1))  # type: ignore[arg-type]
    assert vocabulary.round_s > 2 * small.round_s and vocabulary.library_s > 2 * small.library_s
    plan = BudgetPlan((vocabulary, small), Budget(None, 20.0))
    assert (plan.affordable, plan.recommended.seconds) == (1, 10 * round((30 + vocabulary.enough_s) / 10))


def test_tasks_of_which_most_is_expected_come_first() -> None:
    tasks = [SearchTask("dense", {"m": "T", "n": n, "k": 768}, (ShapeVar("T", range(1, 9)),)) for n in (50257, 64)]
    often, seldom = BudgetPlan.of(zip(tasks, (1, 10**6), strict=True), Budget(None, 60.0)).costs
    assert often.round_s < seldom.round_s


def test_a_run_takes_longer_the_more_there_is_to_compute_or_to_read() -> None:
    def task(most: int, m: str, n: int) -> SearchTask:
        return SearchTask("dense", {"m": m, "n": n, "k": 64}, (ShapeVar("T", range(1, most)),))

    small = run_s(task(9, "T", 64))
    assert small < run_s(task(9, "T", 640)) < run_s(task(9, "9*T", 640))
    assert small < run_s(task(99, "T", 64))
