"""What a search's kernels are compared with: measured once, charged, and never the end of the search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.fakes import TASK
from tests.searching import Bench, known, make_quick, records
from tuner.measure import BASELINES_S, DeviceFailed, DeviceLost
from tuner.program.job.task import SearchTask
from tuner.records import Baselines, Roof
from tuner.search.tuning import Cancelled


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def test_baselines_are_measured_once_after_the_first_round() -> None:
    bench = Bench()
    tuned = bench.tune(60)
    first_round = [result for result in bench.results if result.is_theory]
    assert bench.runner.compared == [len(first_round)]
    (results,) = bench.recorder.compared
    assert [point.instance for point in results.points] == list(TASK.instances)
    assert results.roof is not None
    later = [summary for summary in bench.recorder.summaries if summary.phase not in ("plan", "theory")]
    assert all(summary.speedup_vs_numpy for summary in later)
    assert bench.recorder.progress("theory")[0].speedup_vs_numpy is None
    by_numpy = sum(point.latency_s for point in results.points)
    assert known(tuned.summary.speedup_vs_numpy) == pytest.approx(by_numpy / known(tuned.summary.library_objective_s))


def test_baselines_are_compared_at_one_speed_with_the_trials() -> None:
    steady, slowed = Bench(), Bench()
    slowed.runner.slowdown = lambda trials: 2.0 if slowed.runner.compared == [trials] else 1.0
    result = [bench.tune(30).summary.speedup_vs_numpy for bench in (steady, slowed)]
    assert result[0] == result[1]
    points = [bench.recorder.compared[0].points for bench in (steady, slowed)]
    assert points[1][0].latency_s == 2 * points[0][0].latency_s


def test_baselines_that_are_known_are_not_measured_again() -> None:
    first = Bench()
    with pytest.raises(Cancelled):
        first.tune(30, should_stop=lambda: len(first.runner.ran) >= 24)
    (baselines,) = first.recorder.compared
    second = Bench()
    tuned = second.tune(30, past=records(first.results), baselines=baselines)
    assert (second.runner.compared, second.recorder.compared) == ([], [])
    assert known(tuned.summary.speedup_vs_numpy) > 0
    without = Bench()
    without.tune(30, past=records(first.results))
    assert len(without.recorder.compared) == 1


def test_a_device_that_dies_of_the_baselines_costs_the_search_nothing_else() -> None:
    bench = Bench()
    asked: list[SearchTask] = []

    def dies(task: SearchTask, instances: Any) -> Baselines:
        asked.append(task)
        raise DeviceFailed("device d-1 failed over the baselines")

    bench.runner.baselines, bench.runner.has_numpy = dies, False  # type: ignore[method-assign]
    tuned = bench.tune(30)
    assert len(asked) == 1
    assert all(each.roof is None for each in bench.recorder.compared)
    assert tuned.summary.speedup_vs_numpy is None
    assert known(tuned.summary.speedup_vs_default) > 1
    logs = [event.data["message"] for event in bench.recorder.events if event.kind == "log"]
    assert any("device d-1 failed over the baselines" in message for message in logs)


def test_a_device_that_is_lost_with_the_baselines_ends_the_search_as_ever() -> None:
    bench = Bench()

    def lost(task: SearchTask, instances: Any) -> Baselines:
        raise DeviceLost("gone")

    bench.runner.baselines = lost  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        bench.tune(30)
    assert len(bench.results) == len(bench.runner.ran) > 0


def test_baselines_are_charged_to_the_budget_and_left_out_where_there_is_no_room() -> None:
    bench = Bench(build_s=0.4)
    bench.runner.compare_s = BASELINES_S
    bench.tune(seconds=20)
    steps = [after - before for before, after in itertools.pairwise(bench.recorder.spent_s)]
    assert max(steps) >= BASELINES_S
    assert bench.clock.now_s <= 1000 + 20 + 2
    short = Bench(build_s=0.3)
    short.tune(seconds=3)
    assert short.runner.compared == []


def test_a_task_whose_points_are_unknown_has_its_roof_and_no_speedup() -> None:
    bench = Bench()
    bench.runner.has_numpy = False
    bench.runner.baselines = lambda task, instances: Baselines(roof=Roof(1e15, 1.0))  # type: ignore[method-assign]
    assert bench.tune(20).summary.outcome.speedup_vs_numpy is None
    assert bench.recorder.compared == [Baselines(roof=Roof(1e15, 1.0))]


def test_a_roof_below_the_fastest_kernel_is_measured_again() -> None:
    """Dots at 140 GFLOP/s stood over a roof of 66, which was measured while a neighbour was busy."""
    bench, roofs = Bench(), iter([Roof(1e6, 1e10, 2e-6), Roof(1e15, 1e9, 2e-6)])
    bench.runner.baselines = lambda task, instances: Baselines(roof=next(roofs))  # type: ignore[method-assign]
    bench.tune(20)
    first, last = bench.recorder.compared
    assert first.roof == Roof(1e6, 1e10, 2e-6)
    # The best of both readings.
    assert last.roof == Roof(1e15, 1e10, 2e-6)
