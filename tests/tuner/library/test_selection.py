"""The choice of a library's kernels, against every possible choice of small random instances."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tuner.library.selection import WORTH, select, spread_weights

Floats = NDArray[np.float64]


def cost(latency_s: Floats, weights: Floats, chosen: Sequence[int]) -> float:
    return float((latency_s[list(chosen)].min(axis=0) * weights).sum())


def best_cost(latency_s: Floats, weights: Floats, limit: int, groups: Sequence[Hashable]) -> float:
    result = []
    for size in range(1, limit + 1):
        for chosen in itertools.combinations(range(len(latency_s)), size):
            if len({groups[index] for index in chosen}) == 1:
                result.append(cost(latency_s, weights, chosen))
    return min(result)


@st.composite
def instances(draw: st.DrawFn) -> tuple[Floats, Floats, int, list[int]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kernels, shapes = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    groups = [int(group) for group in rng.integers(0, draw(st.integers(1, 3)), kernels)]
    return np.exp(rng.normal(size=(kernels, shapes))), rng.random(shapes), draw(st.integers(1, 4)), groups


def instance_of(rng: np.random.Generator) -> tuple[Floats, Floats, int, list[int]]:
    """One of the same sizes."""
    kernels, shapes = int(rng.integers(1, 9)), int(rng.integers(1, 7))
    groups = [int(group) for group in rng.integers(0, rng.integers(1, 4), kernels)]
    return np.exp(rng.normal(size=(kernels, shapes))), rng.random(shapes), int(rng.integers(1, 5)), groups


@given(instances())
def test_the_choice_is_never_far_from_the_best_of_all(instance: tuple[Floats, Floats, int, list[int]]) -> None:
    latency_s, weights, limit, groups = instance
    chosen = select(latency_s, weights, limit, groups)
    assert 1 <= len(chosen) <= limit
    assert len(set(chosen)) == len(chosen)
    assert len({groups[index] for index in chosen}) == 1
    # One of a thousand such instances has a choice that no swap improves and that is 1.05 to 1.7 times the best.
    assert cost(latency_s, weights, chosen) <= best_cost(latency_s, weights, limit, groups) * 2.5 + 1e-12


def test_few_choices_are_far_from_the_best() -> None:
    rng, far = np.random.default_rng(1), 0
    for _ in range(1000):
        latency_s, weights, limit, groups = instance_of(rng)
        chosen = select(latency_s, weights, limit, groups)
        far += cost(latency_s, weights, chosen) > best_cost(latency_s, weights, limit, groups) * 1.1
    # One is, with this seed; three are of the six thousand of seeds 0 to 5, the worst 1.71 times the best.
    assert far <= 2


def test_the_choice_is_nearly_always_the_best() -> None:
    rng = np.random.default_rng(0)
    worse = 0
    for _ in range(100):
        latency_s, weights = np.exp(rng.normal(size=(9, 6))), rng.random(6)
        chosen = select(latency_s, weights, 3, [0] * 9)
        worse += cost(latency_s, weights, chosen) > best_cost(latency_s, weights, 3, [0] * 9) * (1 + 2 * WORTH)
    assert worse <= 10


def test_of_layouts_with_about_the_same_sum_the_one_that_serves_short_shapes_better_is_chosen() -> None:
    weights, groups = np.ones(2), ["wide", "narrow"]
    assert select(np.array([[1.0, 1000.0], [1.2, 995.0]]), weights, 2, groups) == [0]
    assert select(np.array([[1.0, 1020.0], [1.2, 995.0]]), weights, 2, groups) == [1]


def test_room_that_is_left_goes_to_shapes_that_the_sum_does_not_see() -> None:
    # Over six orders of magnitude: one kernel halves the time of the smallest shape, one gains nothing.
    latency_s = np.array([[2e-6, 1e-3, 1.0], [1e-6, 2e-3, 2.0], [2e-6, 1e-3, 1.1]])
    assert select(latency_s, np.ones(3), 3, [0, 0, 0]) == [0, 1]
    assert select(latency_s, np.ones(3), 1, [0, 0, 0]) == [0]
    assert select(latency_s, np.array([0.0, 1.0, 1.0]), 3, [0, 0, 0]) == [0]


def test_swaps_find_what_greedy_misses() -> None:
    # The all-rounder looks best alone, but two specialists need no third.
    latency_s = np.array([[2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 9.0, 9.0], [9.0, 9.0, 1.0, 1.0]])
    assert sorted(select(latency_s, np.ones(4), 2, [0, 0, 0])) == [1, 2]


def test_a_kernel_that_gains_next_to_nothing_is_left_out() -> None:
    latency_s = np.array([[1.0, 1.0], [1.0, 0.9999], [5.0, 5.0]])
    assert len(select(latency_s, np.ones(2), 3, [0, 0, 0])) == 1


def test_weights_decide() -> None:
    latency_s = np.array([[1.0, 3.0], [3.0, 1.0]])
    assert select(latency_s, np.array([9.0, 1.0]), 1, [0, 0]) == [0]
    assert select(latency_s, np.array([1.0, 9.0]), 1, [0, 0]) == [1]


def test_the_better_group_wins_as_a_whole() -> None:
    latency_s = np.array([[1.0, 9.0], [2.0, 2.0], [9.0, 3.5]])
    assert select(latency_s, np.ones(2), 3, ["a", "b", "a"]) == [1]
    assert sorted(select(latency_s, np.ones(2), 3, ["a", "a", "b"])) == [0, 1]


def test_unusable_kernels_are_never_all_that_a_shape_has() -> None:
    inf = np.inf
    latency_s = np.array([[1.0, inf], [4.0, 4.0], [inf, 1.0]])
    assert sorted(select(latency_s, np.ones(2), 2, [0, 0, 0])) == [0, 2]
    assert select(latency_s, np.ones(2), 1, [0, 0, 0]) == [1]
    assert select(latency_s, np.array([1.0, 0.0]), 1, [0, 0, 0]) == [1]
    with pytest.raises(ValueError, match="no group has kernels that serve every shape"):
        select(latency_s[:1], np.ones(2), 1, [0])
    with pytest.raises(ValueError, match="no group"):
        select(latency_s[[0, 2]], np.ones(2), 2, ["a", "b"])


SIZES = st.integers(1, 300)


@given(st.lists(SIZES, min_size=1, max_size=40), st.lists(SIZES, min_size=1, max_size=8), st.data())
def test_spread_weights_keep_their_sum(shapes: list[int], tuned: list[int], data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.floats(0, 100), min_size=len(tuned), max_size=len(tuned))))
    points, instances = (np.array(values, np.float64)[:, None] for values in (shapes, tuned))
    spread = spread_weights(weights, points, instances)
    assert spread.shape == (len(shapes),)
    assert (spread >= 0).all()
    assert spread.sum() == pytest.approx(weights.sum(), abs=1e-9)


def test_half_of_a_weight_stays_and_half_goes_to_the_neighbours() -> None:
    points = np.arange(1.0, 11.0)[:, None]
    spread = spread_weights(np.array([8.0, 2.0]), points, np.array([[2.0], [10.0]]))
    assert spread[1] == pytest.approx(4.0 + 4.0 / 4)
    assert spread[9] == pytest.approx(1.0 + 1.0 / 6)
    assert spread[0] == spread[2] == pytest.approx(1.0)
    assert spread[6] == pytest.approx(1.0 / 6)
