from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.timing import BUDGET_S, LEAST_SAMPLES, MIN_SAMPLE_S, SAMPLES, Sample, measure, plan


@pytest.mark.parametrize("estimate_s", [0.0, 1e-7, 3e-6, 1e-4, 1.5e-3, 0.004, 0.02, 0.3, 5.0])
def test_a_plan_keeps_to_the_protocol(estimate_s: float) -> None:
    number, samples = plan(estimate_s)
    assert LEAST_SAMPLES <= samples <= SAMPLES
    assert number * max(estimate_s, 1e-7) >= MIN_SAMPLE_S or (number == 1 and estimate_s >= MIN_SAMPLE_S)
    assert samples == LEAST_SAMPLES or number * samples * estimate_s <= BUDGET_S


def test_a_long_kernel_runs_four_times_and_a_short_one_fills_its_samples() -> None:
    assert plan(2.0) == (1, 4)
    assert plan(1e-5) == (400, 8)


def sampling(samples_s: Iterable[float]) -> Sample:
    given = iter(samples_s)

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        found = []
        for _ in range(repeat):
            before()
            found.append(next(given))
        return tuple(found)

    return sample


def test_the_latency_is_the_median_of_the_samples() -> None:
    samples = (5.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0)
    calls: list[int] = []
    timed = measure(lambda: calls.append(1), sampling(samples), lambda: 1.0)
    assert (timed.latency_s, timed.samples_s) == (7.0, samples)
    assert calls


@given(st.lists(st.floats(0.5, 2.0), min_size=9, max_size=9), st.floats(1e-3, 10.0))
def test_a_core_of_changing_speed_gives_the_same_latency_in_anchors(speeds: list[float], true_s: float) -> None:
    """Its speed is known before and after each sample; one that drifts evenly in between cancels out."""
    samples = [true_s * (before + after) / 2 for before, after in itertools.pairwise(speeds)]
    anchors = iter(speeds)
    timed = measure(lambda: None, sampling(samples), lambda: next(anchors))
    assert timed.latency_s / timed.anchor_s == pytest.approx(true_s)
