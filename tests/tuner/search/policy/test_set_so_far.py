"""What a kernel adds to the set, whose turn it is, and what a slower packed layout costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import TASK
from tuner.records import MeasureResult
from tuner.schedule import default_kernel, layout_group, rule_of, space_of
from tuner.schedule.product.axes import WIDE
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured
from tuner.search.policy.set_so_far import Floats, Incumbents, JointGains, Turns, layout_penalties

WEIGHTS = np.full(len(TASK.instances), 1 / len(TASK.instances))
SAFE = default_kernel(TASK)
NEAR = space_of(TASK).neighbours(SAFE)
ALIKE = next(kernel for kernel in NEAR if layout_group(TASK, kernel) == layout_group(TASK, SAFE))
OTHER = rule_of(SAFE).space(TASK).kernel(dict(SAFE.values) | {"panel": WIDE})


def known(*results: MeasureResult) -> Incumbents:
    model = PairCostModel(TASK)
    model.update(results)
    return Incumbents(TASK, model, Measured(results), WEIGHTS)


def everywhere(kernel: MicroKernel, seconds: float) -> list[MeasureResult]:
    return [MeasureResult(kernel, instance, seconds) for instance in TASK.instances]


def test_turns_are_shared_by_weight_and_spread() -> None:
    turns = Turns(np.array([0.5, 0.0, 0.25, 0.25]))
    had = [turns.next() for _ in range(8)]
    assert Counter(had) == {0: 4, 2: 2, 3: 2}
    assert had[:4].count(0) == 2


def test_a_turn_among_some_is_of_the_one_that_is_furthest_behind() -> None:
    turns = Turns(np.array([1.0, 1e-9, 1e-12]))
    assert [turns.next([1, 2]) for _ in range(3)] == [1, 1, 1]
    assert turns.next([2]) == 2
    assert turns.next() == 0


def test_a_slower_layout_costs_half_of_what_it_is_slower() -> None:
    weights = np.array([0.75, 0.25])
    best: dict[Hashable, Floats] = {"fast": np.array([1.0, 1.0]), "slow": np.array([2.0, 1.0])}
    assert layout_penalties(best, weights) == pytest.approx({"fast": 0.0, "slow": 0.5 * 0.75 * np.log(2)})


def test_standing_is_log_seconds_with_the_penalty_of_the_layout() -> None:
    standing = known(*everywhere(SAFE, 1e-6), *everywhere(OTHER, 2e-6), MeasureResult(ALIKE, TASK.instances[0], 3e-6))
    times = standing.standing()
    assert times[0][SAFE] == pytest.approx(np.log(1e-6))
    assert times[0][OTHER] == pytest.approx(np.log(2e-6) + 0.5 * np.log(2))
    assert times[0][ALIKE] == pytest.approx(np.log(3e-6))
    assert set(times[1]) == {SAFE, OTHER}
    assert known().standing() == [{} for _ in TASK.instances]


def test_a_kernel_gains_where_it_is_faster_than_the_set() -> None:
    first, last = TASK.instances[0], TASK.instances[-1]
    results = [MeasureResult(ALIKE, first, 5e-7), MeasureResult(ALIKE, last, 4e-6)]
    so_far = known(*everywhere(SAFE, 1e-6), *results)
    assert so_far.fastest(0, 1) == [ALIKE]
    assert so_far.fastest(len(TASK.instances) - 1, 2) == [SAFE, ALIKE]
    gains, _ = so_far.gains([SAFE, ALIKE], optimism=0.0)
    assert gains.shape == (2, len(TASK.instances))
    assert so_far.instances_for(np.array([0.1, 0.0, 0.3, 0.2, 0.0])) == [2, 3]
    assert so_far.instances_for(np.array([-0.1, -0.01, -0.3, -0.2, -0.1])) == [1], "one of its best"


# -- batches ----------------------------------------------------------------------------------------------------------
def joint(gains: Floats, weights: Floats, chosen: tuple[int, ...]) -> float:
    return float(gains[list(chosen)].max(axis=0) @ weights)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4))
def test_a_batch_gains_nearly_what_the_best_batch_does(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    gains, weights = rng.exponential(size=(8, 5)) * (rng.random((8, 5)) < 0.4), rng.dirichlet(np.ones(5))
    together = JointGains(gains, weights, ["one"] * 8)
    taken = [together.take() for _ in range(count)]
    greedy = joint(gains, weights, tuple(index for index, _ in taken))
    assert greedy >= (1 - 1 / np.e) * max(joint(gains, weights, some) for some in combinations(range(8), count))
    assert sum(added @ weights for _, added in taken) == pytest.approx(greedy, rel=0.02)


def test_a_second_kernel_for_the_same_instances_is_not_taken_before_one_for_others() -> None:
    gains = np.array([[0.5, 0.0], [0.49, 0.0], [0.0, 0.1]])
    together = JointGains(gains, np.array([0.5, 0.5]), ["one"] * 3)
    assert [together.take()[0] for _ in range(3)] == [0, 2, 1]


def test_kernels_of_another_layout_add_to_another_set() -> None:
    gains = np.array([[0.5, 0.0], [0.49, 0.0], [0.0, 0.1]])
    together = JointGains(gains, np.array([0.5, 0.5]), ["one", "other", "one"])
    assert [together.take()[0] for _ in range(3)] == [0, 1, 2]


def test_of_an_instance_where_nothing_is_left_to_gain_the_next_best_is_taken() -> None:
    gains = np.array([[0.5, 0.0], [0.1, 0.0], [0.2, 0.0], [0.0, 0.3]])
    together = JointGains(gains, np.array([0.5, 0.5]), ["one"] * 4)
    assert [together.take(0)[0] for _ in range(3)] == [0, 2, 1]
