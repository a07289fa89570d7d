"""What the pages say of jobs, from what the database holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.dashboard import presenters
from tuner.search.summary import SearchSummary
from tuner.search.verdict import Ratio
from tuner.storage import ApiKey, Job, JobState

DONE = {
    "trials": 60, "trials_budget": 100, "elapsed_s": 30.0, "seconds_budget": 40.0, "default_objective_s": 3.0,
    "objective_s": 3.0 / 1.7, "library_objective_s": 2.0, "speedup_vs_default": 1.7,
    "speedup_vs_numpy": 1.1 * 1.7 / 1.5, "kernels": 3,
}  # fmt: skip


def job(summary: dict[str, Any], state: JobState = JobState.RUNNING, name: str = "n") -> Job:
    return Job(
        "job-1", name, "key-1", state, "local", {}, "2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z", None, 1, "w", 60,
        "", summary,
    )  # fmt: skip


def test_a_line_names_its_owner_and_how_far_it_is() -> None:
    [line] = presenters.lines_of([job(DONE)], [ApiKey("key-1", "Ada", "", None)])
    assert (line.owner, line.progress, line.speedup) == ("Ada", 0.75, Ratio("default", 1.5))
    assert line.vs_numpy is not None and line.vs_numpy.ratio == pytest.approx(1.1)
    [unnamed] = presenters.lines_of([job({}, name="")], [])
    assert (unnamed.name, unnamed.owner, unnamed.progress, unnamed.speedup) == ("job-1", "key-1", 0.0, None)


def test_a_completed_job_is_whole_whatever_it_spent() -> None:
    [line] = presenters.lines_of([job(DONE, JobState.COMPLETED)], [])
    assert (line.progress, line.ended) == (1.0, True)


def test_a_job_of_many_tasks_is_as_far_as_they_are_in_the_mean() -> None:
    half = {**DONE, "elapsed_s": 10.0, "trials": 25, "speedup_vs_numpy": 2.2 * 1.7 / 1.5}
    spec = {"workloads": [{"count": 3}, {}], "targets": ["native", "native"]}
    whole = replace(job({"tasks": {"1": half, "0": DONE}}), spec=spec)
    [line] = presenters.lines_of([whole], [])
    assert line.progress == 0.25
    # Positions 0 and 1 are the first workload's, on each target.
    assert line.vs_numpy is not None and line.vs_numpy.ratio == pytest.approx((3 * 1.1 + 3 * 2.2) / 6)
    assert presenters.summary_of(whole, 1) == SearchSummary.from_json(half)
    assert presenters.summary_of(whole, 2) is None


@pytest.mark.parametrize(
    ("summary", "expected"),
    [({}, 0.0), ({"trials": 5, "trials_budget": 0}, 0.0), ({"elapsed_s": 90.0, "seconds_budget": 60.0}, 1.0)],
)
def test_progress_stays_within_its_bounds(summary: dict[str, Any], expected: float) -> None:
    [line] = presenters.lines_of([job(summary)], [])
    assert line.progress == expected


def test_the_headline_says_what_a_search_came_to() -> None:
    assert presenters.headline(SearchSummary.from_json(DONE)) == [
        ("1.50x", "over the default"),
        ("1.10x", "over NumPy's BLAS (library, timed at the end)"),
        ("3", "kernels"),
        ("30 s", "of search"),
    ]
    assert presenters.headline(None) == []
