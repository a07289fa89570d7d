from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.timing.protocol import (
    BUDGET_S,
    MIN_SAMPLE_S,
    MIN_SAMPLES,
    RECENT,
    SAMPLES,
    Sample,
    Timer,
    plan,
    sampling,
)


@pytest.mark.parametrize("estimate_s", [0.0, 1e-7, 3e-6, 1e-4, 1.5e-3, 0.004, 0.02, 0.3, 5.0])
def test_a_plan_keeps_to_the_protocol(estimate_s: float) -> None:
    number, samples = plan(estimate_s)
    assert MIN_SAMPLES <= samples <= SAMPLES
    assert number * max(estimate_s, 1e-7) >= MIN_SAMPLE_S or (number == 1 and estimate_s >= MIN_SAMPLE_S)
    assert samples == MIN_SAMPLES or number * samples * estimate_s <= BUDGET_S


def test_a_long_kernel_runs_four_times_and_a_short_one_fills_its_samples() -> None:
    assert plan(2.0) == (1, 4)
    assert plan(1e-5) == (400, 8)


def test_fewer_samples_of_what_is_long_may_do() -> None:
    assert plan(2.0, least=2) == (1, 2)
    assert plan(1e-5, least=2) == (400, 8)


def test_samples_from_python_are_means_of_calls_in_a_row() -> None:
    events: list[str] = []
    result = sampling(lambda: events.append("call"))(3, 2, lambda: events.append("before"))
    assert events == ["before", "call", "call", "call"] * 2
    assert len(result) == 2
    assert all(0 < mean_s < 0.1 for mean_s in result)


def given_samples(samples_s: Iterable[float]) -> Sample:
    given = iter(samples_s)

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        result = []
        for _ in range(repeat):
            before()
            result.append(next(given))
        return tuple(result)

    return sample


def test_the_latency_is_the_median_of_the_samples() -> None:
    samples = (5.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0)
    calls: list[int] = []
    timed = Timer(lambda: 1.0).measure(lambda: calls.append(1), given_samples(samples))
    assert (timed.latency_s, timed.samples_s) == (7.0, samples)
    assert calls


def test_a_peak_is_the_best_of_its_samples() -> None:
    """A roof of 66 GFLOP/s was measured while a neighbour was busy, and kernels ran at 140."""
    anchors = iter([3.0, 2.0, 1.0, 2.0])

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        for _ in range(4):
            before()
        return (5.0, 1.0, 2.0, 9.0)

    timed = Timer(lambda: next(anchors), least=2, again=0).best(lambda: None, sample)
    assert (timed.latency_s, timed.anchor_s) == (1.0, 1.0)


@given(st.lists(st.floats(0.5, 2.0), min_size=9, max_size=9), st.floats(1e-3, 10.0))
def test_a_core_of_changing_speed_gives_the_same_latency_in_anchors(speeds: list[float], true_s: float) -> None:
    """Its speed is known before and after each sample; one that drifts evenly in between cancels out."""
    samples = [true_s * (before + after) / 2 for before, after in itertools.pairwise(speeds)]
    anchors = iter(speeds)
    timed = Timer(lambda: next(anchors)).measure(lambda: None, given_samples(samples))
    assert timed.latency_s / timed.anchor_s == pytest.approx(true_s)


def test_a_disturbed_reading_is_taken_again_and_the_least_disturbed_counts() -> None:
    core = {"speed": 1.0}
    taken: list[float] = []

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        taken.append(core["speed"])
        before()
        result = [2.0 * core["speed"] ** 0.5 for _ in range(repeat)]
        for _ in range(repeat - 1):
            before()
        # Quieter each time.
        core["speed"] = max(1.0, core["speed"] - 1.0)
        return tuple(result)

    timer = Timer(lambda: core["speed"])
    assert timer.measure(lambda: None, sample).latency_s == 2.0
    core["speed"] = 3.0
    assert timer.measure(lambda: None, sample).latency_s == 2.0
    assert taken == [1.0, 3.0, 2.0, 1.0]


def test_a_reading_whose_threads_waited_for_a_core_is_taken_again() -> None:
    """The anchor, on one thread, sees nothing of what keeps another one busy."""
    readings = iter([(2.0, 0.0), (4.0, 60.0), (3.0, 30.0), (2.0, 0.0)])
    waited = {"s": 0.0}

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        latency_s, waits_s = next(readings)
        waited["s"] += waits_s
        for _ in range(repeat):
            before()
        return (latency_s,) * repeat

    timer = Timer(lambda: 1.0, lambda: waited["s"])
    assert timer.measure(lambda: None, sample).latency_s == 2.0
    timed = timer.measure(lambda: None, sample)
    assert (timed.latency_s, timed.anchor_s) == (2.0, 1.0)
    assert next(readings, None) is None


def test_who_has_no_time_takes_a_disturbed_reading_as_it_is() -> None:
    anchors = iter([1.0, 1.0, 3.0, 3.0])

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        before()
        return (1.0,)

    timer = Timer(lambda: next(anchors), again=0)
    for _ in range(2):
        timer.measure(lambda: None, sample)
    assert next(anchors, None) is None


def test_a_core_whose_speed_swings_is_not_read_again_and_again() -> None:
    readings: list[int] = []
    speeds = itertools.cycle([1.0, 1.12, 1.06])

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        readings.append(number)
        before()
        return (1.0,)

    pace = [1.0]
    timer = Timer(lambda: pace[0])
    for _ in range(30):
        pace[0] = next(speeds)
        timer.measure(lambda: None, sample)
    assert len(readings) < 36


def test_a_core_that_stays_slower_is_believed_in_the_end() -> None:
    pace = [1.0]
    count: list[int] = []

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        count.append(number)
        for _ in range(repeat):
            before()
        return (1.0,) * repeat

    timer = Timer(lambda: pace[0])
    timer.measure(lambda: None, sample)
    pace[0] = 1.3
    for _ in range(RECENT):
        timer.measure(lambda: None, sample)
    before = len(count)
    timer.measure(lambda: None, sample)
    assert len(count) == before + 1
