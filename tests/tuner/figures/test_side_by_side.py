"""Jobs side by side: equal workloads alone, and ratios whose intervals say what is noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import TASK, V3
from tests.tuner.figures.searches import finished
from tuner.figures import compare
from tuner.figures.side_by_side import Side, side_by_side
from tuner.figures.view import SearchView
from tuner.program.job.task import SearchTask
from tuner.search.verdict import Verdict

VIEW = finished()


def faster(view: SearchView, factor: float, anchor: float = 1.0) -> SearchView:
    """The same search on a device that is so many times as fast, its anchor ``anchor`` times as long."""
    results = [
        replace(
            each,
            latency_s=each.latency_s and each.latency_s / factor,
            anchor_s=each.anchor_s and anchor * each.anchor_s,
        )
        for each in view.results
    ]
    return replace(view, results=results)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, Verdict.EQUAL), (1.01, Verdict.EQUAL), (1.2, Verdict.FASTER), (0.8, Verdict.SLOWER)]
)
def test_a_job_is_faster_only_beyond_the_noise(factor: float, verdict: Verdict) -> None:
    [pairing] = side_by_side([Side("one", 0, VIEW), Side("other", 0, faster(VIEW, factor))]).pairings

    first, other = pairing.totals
    assert first.ratio is None
    assert other.ratio is not None
    assert other.ratio.ratio == pytest.approx(factor, rel=1e-6)
    assert other.ratio.over == "one"
    assert other.ratio.low is not None
    assert other.ratio.high is not None
    assert other.ratio.low < factor < other.ratio.high
    assert other.ratio.verdict is verdict
    assert len(pairing.shapes) == first.shapes == len(TASK.instances)
    for line in pairing.shapes:
        assert line.jobs[0].ratio is None
        assert line.jobs[1].ratio is not None
        assert line.jobs[1].ratio.verdict is verdict


def test_samples_that_scatter_make_the_interval_wide() -> None:
    noisy = [replace(each, samples_s=(each.latency_s or 0, 0.5 * (each.latency_s or 0), 2 * (each.latency_s or 0)))
             for each in VIEW.results]  # fmt: skip
    [pairing] = side_by_side([Side("one", 0, VIEW), Side("other", 0, replace(VIEW, results=noisy))]).pairings
    ratio = pairing.totals[1].ratio
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.high - ratio.low > 0.1
    assert ratio.verdict is Verdict.EQUAL


def test_a_slower_clock_of_the_device_is_not_a_slower_job() -> None:
    """Both jobs at one speed: what took longer while the anchor took longer, too, is equal."""
    [pairing] = side_by_side([Side("one", 0, VIEW), Side("other", 0, faster(VIEW, 1 / 1.3, anchor=1.3))]).pairings
    assert pairing.totals[1].ratio is not None
    assert pairing.totals[1].ratio.verdict is Verdict.EQUAL


def test_what_is_unlike_is_said_and_not_compared() -> None:
    def of(**other: object) -> SearchView:
        whole = {"threads": 1, "target": TASK.target} | other
        return SearchView(SearchTask("dense", {"m": TASK.shape_vars[0], "n": 96, "k": 32}, TASK.shape_vars, **whole))  # type: ignore[arg-type]

    small = SearchView(SearchTask("dense", {"m": 64, "n": 8, "k": 32}, target=TASK.target))
    found = side_by_side(
        [Side("a", 0, VIEW), Side("b", 0, of(target=V3)), Side("c", 0, of(threads=2)), Side("d", 0, small)]
    )

    assert found.pairings == ()
    reasons = {each.job_id: each.reason for each in found.unlike}
    assert "another target" in reasons["b"]
    assert "another number of threads" in reasons["c"]
    assert reasons["d"] == "no other job has this workload"


def test_the_figure_shows_each_job_but_the_first_with_its_intervals() -> None:
    figure = compare({"one": VIEW, "b": faster(VIEW, 1.2), "c": faster(VIEW, 0.8)}, "speedup_by_shape")
    assert [trace.name for trace in figure.data] == ["b", "c"]
    assert all(len(trace.error_y.array) == len(trace.x) == len(TASK.instances) for trace in figure.data)
    unlike = compare({"one": VIEW, "static": SearchView(SearchTask("dense", {"m": 1, "n": 8, "k": 8}, target=V3))},
                     "speedup_by_shape")  # fmt: skip
    assert "no workload in common" in unlike.layout.annotations[0].text
