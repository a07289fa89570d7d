from __future__ import annotations

import pytest

from tuner.measure.timing import BUDGET_S, LEAST_SAMPLES, MIN_SAMPLE_S, SAMPLES, measure, plan


@pytest.mark.parametrize("estimate_s", [0.0, 1e-7, 3e-6, 1e-4, 1.5e-3, 0.004, 0.02, 0.3, 5.0])
def test_a_plan_keeps_to_the_protocol(estimate_s: float) -> None:
    number, samples = plan(estimate_s)
    assert LEAST_SAMPLES <= samples <= SAMPLES
    assert number * max(estimate_s, 1e-7) >= MIN_SAMPLE_S or (number == 1 and estimate_s >= MIN_SAMPLE_S)
    assert samples == LEAST_SAMPLES or number * samples * estimate_s <= BUDGET_S


def test_a_long_kernel_runs_three_times_and_a_short_one_fills_its_samples() -> None:
    assert plan(2.0) == (1, 3)
    assert plan(1e-5) == (400, 8)


def test_the_latency_is_the_median_of_the_samples() -> None:
    asked: list[tuple[int, int]] = []

    def sample(number: int, repeat: int) -> tuple[float, ...]:
        asked.append((number, repeat))
        return (5.0, 1.0, 2.0)

    calls: list[int] = []
    timed = measure(lambda: calls.append(1), sample)
    assert (timed.latency_s, timed.samples_s) == (2.0, (5.0, 1.0, 2.0))
    assert calls and len(asked) == 1
