"""Summaries of searches: derived figures, and JSON of this and of older versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.blas import Blas
from tuner.device_speed import DeviceSpeed, SpeedState
from tuner.search.outcome import IN_TURNS, LIBRARY, SO_FAR, Outcome, total_of
from tuner.search.summary import JobSummary, SearchSummary, out_of_seconds
from tuner.search.verdict import FinalComparison, Ratio

TIMES = st.none() | st.floats(1e-9, 1e3)
SUMMARIES = st.builds(
    SearchSummary,
    trials=st.integers(0, 100),
    trials_budget=st.none() | st.integers(0, 100),
    elapsed_s=st.floats(0, 1e6),
    objective_s=TIMES,
    default_objective_s=TIMES,
    speedup_vs_numpy=TIMES,
    kernels=st.none() | st.integers(1, 8),
    library_objective_s=TIMES,
)


@given(SUMMARIES)
def test_a_summary_comes_back_from_json(summary: SearchSummary) -> None:
    assert SearchSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


@given(st.lists(SUMMARIES, min_size=1, max_size=3))
def test_the_summary_of_a_job_comes_back_from_json(summaries: list[SearchSummary]) -> None:
    job = JobSummary(dict(enumerate(summaries)))
    stored = json.loads(json.dumps(job.to_json(len(summaries))))
    assert JobSummary.from_json(stored) == job
    assert ("tasks" in stored) == (len(summaries) > 1)


def test_a_job_of_one_task_has_the_summary_of_that_task() -> None:
    summary = SearchSummary(trials=3)
    assert JobSummary().replaced(0, summary).to_json(1) == summary.to_json()
    assert JobSummary().replaced(1, summary).to_json(2) == {"tasks": {"1": summary.to_json()}}
    assert JobSummary.from_json({}).tasks == {}


def test_what_is_missing_is_unknown_and_what_is_not_known_is_left_out() -> None:
    assert SearchSummary.from_json({"trials": 5, "position": 1, "objective_s": None}) == SearchSummary(trials=5)


def test_what_is_of_the_library_is_left_out_before_there_is_one() -> None:
    assert not {"kernels", "digest", "library_objective_s"} & set(SearchSummary().to_json())
    assert SearchSummary(kernels=2).to_json()["kernels"] == 2
    assert SearchSummary().to_json()["speedup_vs_default"] is None


def test_the_outcome_is_of_the_library_once_that_was_timed() -> None:
    before = SearchSummary(objective_s=1.5, default_objective_s=3.0, speedup_vs_default=2.0, speedup_vs_numpy=4.0)
    assert before.outcome == Outcome.so_far(SO_FAR, 1.5, 2.0, 4.0)
    after = SearchSummary.from_json(before.to_json() | {"library_objective_s": 2.0})
    assert after.outcome == Outcome.so_far(LIBRARY, 2.0, 1.5, 3.0)
    assert str(after.outcome) == "1.50x over the default, 3.00x over NumPy's BLAS (library, timed at the end)"
    assert SearchSummary(library_objective_s=2.0).outcome == Outcome(LIBRARY, 2.0)
    assert str(SearchSummary().outcome) == ""


def test_a_total_counts_each_search_as_often_as_its_workload_occurs() -> None:
    slow, fast = Outcome.so_far(LIBRARY, 4.0, 1.5, 2.0), Outcome.so_far(LIBRARY, 1.0, 3.0, None)
    assert total_of([(7, slow)]) == slow
    # (4 * 1.5 + 12 * 3) / (4 + 12): the default's time over ours.
    assert total_of([(1, slow), (12, fast)]) == replace(
        Outcome.so_far(LIBRARY, 16.0, 42 / 16, None), known=2, searches=2
    )
    unknown = Outcome(SO_FAR)
    assert total_of([(1, slow), (1, unknown)]) == replace(Outcome.so_far(SO_FAR, 4.0, 1.5, 2.0), known=1, searches=2)
    assert total_of([]) == Outcome(SO_FAR, known=0, searches=0)


@pytest.mark.parametrize(
    ("figures", "share", "remaining_s"),
    [
        ({}, None, None),
        ({"trials": 64}, None, None),
        ({"trials": 5, "trials_budget": 0}, None, None),
        ({"trials": 64, "trials_budget": 256, "elapsed_s": 90.0, "seconds_budget": 180.0}, 0.5, 90.0),
        ({"trials": 32, "trials_budget": 256, "elapsed_s": 20.0, "seconds_budget": 180.0}, 0.125, 140.0),
        ({"elapsed_s": 90.0, "seconds_budget": 60.0}, 1.0, 0.0),
    ],
)
def test_the_budget_is_as_spent_as_the_limit_that_is_nearest(
    figures: dict[str, Any], share: float | None, remaining_s: float | None
) -> None:
    summary = SearchSummary(**figures)
    assert (summary.budget_share, summary.remaining_s) == (share, remaining_s)


COMPARED = FinalComparison(
    0.004,
    (Ratio("default", 1.42, 1.38, 1.47), Ratio("numpy", 1.01, 0.98, 1.04)),
    {"T=1": {"library": 0.004, "default": 0.00568, "numpy": 0.00404}},
    turns=9,
    anchor_s=2e-6,
    retaken=3,
    device_speed=DeviceSpeed(SpeedState.THROTTLED, 2.62e-6, 2e-6, 0.1),
    blas=Blas("openblas", "0.3.31", "Haswell", 1, "its Haswell kernels use no AVX-512, which this CPU has"),
)
CAUTIONS = (
    "its device was throttled: reference work takes 1.31 times as long as usual: measure again on a quiet machine, or "
    "give the device cores of its own",
    "NumPy's BLAS is hobbled: its Haswell kernels use no AVX-512, which this CPU has",
)


def test_the_final_comparison_is_the_outcome_and_a_ratio_within_its_noise_is_equal() -> None:
    summary = SearchSummary(objective_s=1.0, speedup_vs_default=1.93, comparison=COMPARED)
    again = SearchSummary.from_json(json.loads(json.dumps(summary.to_json())))
    assert again.comparison == COMPARED and again.outcome == summary.outcome
    assert COMPARED.conditions.startswith("in 9 turns, 3 readings taken again; NumPy has openblas 0.3.31, Haswell ")
    assert again.outcome.cautions == CAUTIONS
    assert str(again.outcome) == (
        "1.42x over the default (1.38x to 1.47x), equal to NumPy's BLAS (0.98x to 1.04x) "
        f"(library, timed in turns with them); {CAUTIONS[0]}; {CAUTIONS[1]}"
    )
    assert [ratio["verdict"] for ratio in again.outcome.to_json()["ratios"]] == ["faster", "equal"]
    assert "comparison" not in SearchSummary().to_json()


def test_a_total_has_an_interval_where_all_have_one() -> None:
    one = Outcome.final(COMPARED)
    total = total_of([(1, one), (1, one)])
    ratio = total.ratio("default")
    assert ratio is not None and ratio.low is not None and ratio.ratio == pytest.approx(1.42)
    # Independent errors: smaller than that of each.
    assert 1.38 < ratio.low < 1.42 and total.cautions == CAUTIONS and total.label == IN_TURNS
    mixed = total_of([(1, one), (1, Outcome.so_far(LIBRARY, 0.004, 2.0, None))]).ratio("default")
    assert mixed is not None and mixed.low is None and mixed.verdict is None


def test_fewer_trials_than_asked_have_their_reason() -> None:
    """0 of 24 trials, out of time at 13.7 of 25 s; 20 of 24 at 9.9 s without a reason."""
    reason = out_of_seconds({"plan": 3.2, "search": 0.01}, 25.0, 1.7, 8.8)
    late = SearchSummary("done", trials=0, trials_budget=24, elapsed_s=13.7, ended_by="seconds", reason=reason)
    assert replace(late, phase="verify").trials_text == "0 of 24 trials, out of time", "once is enough"
    assert late.trials_text == (
        "0 of 24 trials, out of time (of 25 s: 3.2 s planning, 1.7 s before the search, or for the library that is "
        "served, 8.8 s kept for selecting, building, verifying and comparing)"
    )
    few = SearchSummary("done", trials=20, trials_budget=24, ended_by="trials", reason="4 kept for finalists")
    assert few.trials_text == "20 of 24 trials, 4 kept for finalists"
