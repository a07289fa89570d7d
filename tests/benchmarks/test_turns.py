"""Contenders take turns, and what is compared are medians."""

from __future__ import annotations

import pytest

from benchmarks.harness.turns import Sampler, alternate, geomean, interval, take_turns, turns


def test_contenders_take_turns_in_an_order_that_rotates() -> None:
    asked: list[str] = []

    def contender(name: str, seconds: float) -> Sampler:
        def sample(number: int) -> float:
            asked.append(name)
            return seconds

        return sample

    times = alternate({"a": contender("a", 0.1), "b": contender("b", 0.2)}, rounds=3, budget_s=1e9)
    assert times == {"a": 0.1, "b": 0.2}
    # Two calls of each to warm up, then the rounds.
    assert "".join(asked) == "abababbaab"


def test_short_calls_are_made_many_at_a_time_after_one_that_fills_the_caches() -> None:
    numbers: list[int] = []

    def sample(number: int) -> float:
        numbers.append(number)
        return 1e-5

    alternate({"a": sample}, rounds=3, sample_s=0.004)
    assert numbers == [1, 1, 1, 400, 1, 400, 1, 400]


def test_the_geometric_mean_of_ratios() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([8.0, 1.0, 1.0]) == pytest.approx(2.0)


def test_every_round_begins_one_contender_later() -> None:
    assert list(turns(["a", "b", "c"], 4)) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert list(turns([], 1)) == [[]]


def test_rounds_end_once_the_budget_is_spent_but_not_before_the_third() -> None:
    assert len(take_turns({"a": lambda number: 1.0}, rounds=9, budget_s=0.0)["a"]) == 3


def test_an_interval_is_as_wide_as_the_readings_are_apart() -> None:
    quiet, noisy = [1.0, 1.01, 0.99, 1.0, 1.0], [1.0, 2.0, 0.5, 1.5, 0.7]
    low, high = interval([(quiet, quiet)] * 3)
    assert low == pytest.approx(1.0, abs=0.01) == high
    wide = interval([(noisy, quiet)])
    assert wide[1] - wide[0] > 10 * (high - low)
    assert interval([(noisy, quiet)]) == wide, "the same readings give the same interval"
    assert interval([([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]), ([0.5] * 3, [1.0] * 3)]) == pytest.approx((1.0, 1.0))
