"""How a search stands: weighted times of the best so far and of the default."""

from __future__ import annotations

import pytest

from tests.fakes import TASK
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.observations import Measured
from tuner.search.progress import objectives, summarize
from tuner.search.summary import Stage
from tuner.search.verdict import Ratio

T = ShapeVar("T", range(1, 129))
ONE, TWO = WorkloadInstance.of({"T": 1}, 1.0), WorkloadInstance.of({"T": 128}, 3.0)
WEIGHTED = SearchTask("matmul", {"m": T, "n": 8, "k": 8}, (T,), instances=[ONE, TWO], target=TASK.target)
A, B = (MicroKernel("r", 1, (("a", value),)) for value in (1, 2))


def test_nothing_measured_is_nothing_known() -> None:
    now = objectives(WEIGHTED, Measured(), {}, {"T=1": 1.0, "T=128": 1.0})
    assert (now.objective_s, now.default_objective_s, now.speedup, now.speedup_vs_numpy) == (None, None, None, None)


def test_times_are_weighted_over_what_the_default_was_measured_on() -> None:
    measured = Measured([MeasureResult(A, ONE, 4.0), MeasureResult(A, TWO, 8.0), MeasureResult(B, TWO, 2.0)])
    now = objectives(WEIGHTED, measured, {"T=1": 4.0, "T=128": 8.0}, {})
    assert (now.objective_s, now.default_objective_s) == (4.0 + 3 * 2.0, 4.0 + 3 * 8.0)
    assert now.speedup == pytest.approx(2.8)
    partly = objectives(WEIGHTED, measured, {"T=128": 8.0}, {})
    assert (partly.objective_s, partly.default_objective_s) == (6.0, 24.0)


def test_numpy_is_compared_over_all_instances_or_not_at_all() -> None:
    measured = Measured([MeasureResult(A, ONE, 4.0), MeasureResult(A, TWO, 8.0), MeasureResult(B, TWO, 2.0)])
    by_numpy = {"T=1": 2.0, "T=128": 6.0}
    # The default need not be known: (2 + 3 * 6) / (4 + 3 * 2).
    assert objectives(WEIGHTED, measured, {}, by_numpy).speedup_vs_numpy == pytest.approx(2.0)
    assert objectives(WEIGHTED, measured, {}, {"T=1": 2.0}).speedup_vs_numpy is None
    assert objectives(WEIGHTED, Measured([MeasureResult(A, ONE, 4.0)]), {}, by_numpy).speedup_vs_numpy is None


def test_a_default_that_failed_later_leaves_no_figure() -> None:
    failure = MeasureResult(A, TWO, error_kind=ErrorKind.CRASH)
    assert objectives(WEIGHTED, Measured([MeasureResult(A, ONE, 4.0), failure]), {"T=1": 4.0}, {}).speedup is None


def test_a_summary_holds_the_figures_of_an_event() -> None:
    measured = Measured([MeasureResult(A, ONE, 4.0), MeasureResult(B, ONE, error_kind=ErrorKind.WRONG)])
    now = objectives(WEIGHTED, measured, {"T=1": 4.0}, {})
    data = summarize(now, measured, Budget(9, 2.5), 1.23456, 3, Stage.SEARCH)
    assert data.to_json() == {
        "phase": "search",
        "activity": "searching",
        "round": 3,
        "trials": 2,
        "trials_budget": 9,
        "failed": 1,
        "commonest_error": "1x wrong",
        "elapsed_s": 1.235,
        "seconds_budget": 2.5,
        "objective_s": 4.0,
        "default_objective_s": 4.0,
        "speedup_vs_default": 1.0,
        "speedup_vs_numpy": None,
        "outcome": {
            "label": "best so far in the search",
            "objective_s": 4.0,
            "speedup_vs_default": 1.0,
            "speedup_vs_numpy": None,
            "ratios": [Ratio("default", 1.0).to_json()],
            "cautions": [],
        },
    }
