"""Contenders take turns, and what is compared are medians."""

from __future__ import annotations

import pytest

from benchmarks.alternating import alternate, geomean


def test_contenders_take_turns_in_an_order_that_rotates() -> None:
    asked: list[str] = []

    def contender(name: str, seconds: float) -> object:
        def sample(number: int) -> float:
            asked.append(name)
            return seconds

        return sample

    times = alternate({"a": contender("a", 0.1), "b": contender("b", 0.2)}, rounds=3, budget_s=1e9)  # type: ignore[dict-item]
    assert times == {"a": 0.1, "b": 0.2}
    # Two calls of each to warm up, then the rounds.
    assert "".join(asked) == "abababbaab"


def test_short_calls_are_made_many_at_a_time() -> None:
    numbers: list[int] = []

    def sample(number: int) -> float:
        numbers.append(number)
        return 1e-5

    alternate({"a": sample}, rounds=3, sample_s=0.004)
    assert numbers == [1, 1, 400, 400, 400]


def test_the_geometric_mean_of_ratios() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([8.0, 1.0, 1.0]) == pytest.approx(2.0)
