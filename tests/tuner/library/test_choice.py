"""Which of several libraries is served, by what is known of each at some points."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import TASK
from tuner.library.choice import (
    MAX_POINTS,
    NOISE,
    Candidate,
    Point,
    Time,
    choose,
    covers,
    expected_s,
    points_of,
    ratio,
    times_of,
    width,
)
from tuner.library.dispatcher import Dispatcher, Leaf, TableRow
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel

SAFE = default_kernel(TASK)
POINTS = [Point({"m": 1}), Point({"m": 128}, 3.0)]


def times(*latencies_s: float | None, measured: bool = True) -> list[Time | None]:
    return [None if latency_s is None else Time(latency_s, measured) for latency_s in latencies_s]


def chosen(*candidates: Sequence[Time | None]) -> int:
    return choose(POINTS, [Candidate(str(index), each) for index, each in enumerate(candidates)])


# -- ranges -----------------------------------------------------------------------------------------------------------
def test_a_range_covers_itself_and_what_is_inside() -> None:
    ranges = {"m": (1, 8), "n": (2, 4)}
    assert covers(ranges, ranges)
    assert covers(ranges, {"m": (2, 8), "n": (4, 4)})
    for outside in ({"m": (0, 8), "n": (2, 4)}, {"m": (1, 8), "n": (2, 5)}, {"m": (1, 8)}, {"m": (1, 8), "k": (2, 4)}):
        assert not covers(ranges, outside)
    assert covers({}, {})
    assert (width(ranges), width({})) == (24, 1)


# -- points -----------------------------------------------------------------------------------------------------------
def test_points_are_the_instances_of_all_searches_each_search_weighing_the_same() -> None:
    t = ShapeVar("T", range(1, 129))
    other = SearchTask(TASK.workload, None, (t,), instances=[7, 100], weights=[9.0, 0.0], target=TASK.target)

    result = {point.dims["m"]: point.weight for point in points_of([TASK, other], {"m": (1, 128)})}

    assert result == pytest.approx({1: 0.2, 7: 1.2, 24: 0.2, 61: 0.2, 128: 0.2})


def test_points_are_inside_the_range_or_its_ends() -> None:
    assert {point.dims["m"] for point in points_of([TASK], {"m": (7, 61)})} == {7, 24, 61}
    assert [point.dims["m"] for point in points_of([TASK], {"m": (8, 9)})] == [8, 9]
    assert [point.dims["m"] for point in points_of([], {"m": (8, 8)})] == [8]
    assert len(points_of([], {f"a{index}": (1, 2) for index in range(12)})) == MAX_POINTS


# -- what a library takes ---------------------------------------------------------------------------------------------
def test_what_was_measured_comes_before_what_the_table_predicts() -> None:
    dispatcher = Dispatcher(TASK, (SAFE,), 0, Leaf(0), (TableRow({"T": 1}, 0, 1e-3), TableRow({"T": 128}, 0, 2e-3)))
    medians = {(SAFE.id, "m=1"): 5e-3}

    assert times_of(dispatcher, POINTS, medians, predicted=True) == [Time(5e-3, True), Time(2e-3, False)]
    assert times_of(dispatcher, POINTS, medians, predicted=False) == [Time(5e-3, True), None]


def test_a_prediction_between_the_rows_is_that_of_the_nearest_scaled_by_the_work() -> None:
    rows = tuple(TableRow({"T": t}, 0, t * 1e-3) for t in (1, 64, 128))
    dispatcher = Dispatcher(TASK, (SAFE,), 0, Leaf(0), rows)

    result = dispatcher.predicted_latency_s({"m": 60})

    assert result == pytest.approx(60e-3, rel=1e-3)
    assert dispatcher.predicted_latency_s({"m": 0}) == pytest.approx(0.0, abs=1e-6)


def test_the_mean_is_known_where_every_point_is() -> None:
    assert expected_s(POINTS, times(1.0, 2.0)) == pytest.approx(7 / 4)
    assert expected_s(POINTS, times(1.0, None)) is None
    assert expected_s([], []) is None


def test_the_ratio_is_over_the_points_that_both_know() -> None:
    assert ratio(POINTS, times(1.0, 2.0), times(2.0, 4.0)) == pytest.approx(2.0)
    assert ratio(POINTS, times(1.0, None), times(3.0, 4.0)) == pytest.approx(3.0)
    assert ratio(POINTS, times(1.0, None), times(None, 4.0)) is None


# -- the choice -------------------------------------------------------------------------------------------------------
def test_the_older_one_stays_unless_another_is_faster_beyond_noise() -> None:
    assert chosen(times(1.0, 1.0), times(0.99, 0.99)) == 0
    assert chosen(times(1.0, 1.0), times(0.9, 0.9)) == 1
    assert chosen(times(1.0, 1.0), times(None, None)) == 0
    assert chosen(times(None, None), times(1e-9, 1e-9)) == 0


def test_a_prediction_gains_nothing_over_a_measurement_but_may_lose() -> None:
    assert chosen(times(1.0, 1.0), times(0.1, 0.1, measured=False)) == 0
    assert chosen(times(1.0, 1.0), [Time(0.8, True), Time(0.1, False)]) == 1
    assert chosen(times(1.0, 1.0), [Time(0.8, True), Time(1.5, False)]) == 0
    assert chosen(times(1.0, 1.0, measured=False), times(0.5, 0.5)) == 1


@pytest.mark.parametrize(("wins", "expected"), [(True, 1), (False, 0)])
def test_what_was_timed_in_turns_outweighs_what_is_recorded(wins: bool, expected: int) -> None:
    recorded = times(9.0, 9.0) if wins else times(0.1, 0.1)
    challenger = Candidate("new", recorded, {"old": (1.1, wins)})

    assert choose(POINTS, [Candidate("old", times(1.0, 1.0)), challenger]) == expected


@given(st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)), min_size=1, max_size=12))
def test_of_measured_libraries_the_best_is_served_but_for_noise(latencies_s: list[tuple[float, float]]) -> None:
    every = [times(*each) for each in latencies_s]
    means = [expected_s(POINTS, each) or 0.0 for each in every]

    assert means[chosen(*every)] <= min(means) * (1 + NOISE) * (1 + 1e-9)
