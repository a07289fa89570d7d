"""The Q function: which way is down, how far it reaches, and what it knows of other instances."""

from __future__ import annotations

import numpy as np

from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.search.policy.q_function import QFunction, Transition

SIZES = tuple(range(10))
SPACE = SearchSpace("toy", 1, (Axis("a", "", SIZES), Axis("b", "", SIZES)), check=lambda kernel: None)
SHAPES = np.array([[0.0], [1.0]])


def kernel(a: int, b: int) -> MicroKernel:
    return SPACE.kernel({"a": a, "b": b})


def log_s(point: MicroKernel, instance: int) -> float:
    """A bowl: its bottom is at a = 6, b = 3 for the first instance, and at b = 7 for the second."""
    return 0.02 * (point["a"] - 6) ** 2 + 0.03 * (point["b"] - (3, 7)[instance]) ** 2


def fitted(count: int, discount: float = 0.0) -> QFunction:
    rng, function = np.random.default_rng(0), QFunction(SPACE, SHAPES, discount)
    transitions: list[Transition] = []
    while len(transitions) < count:
        start, instance = SPACE.sample(rng), int(rng.integers(2))
        for step, after in SPACE.steps(start).items():
            gain = log_s(start, instance) - log_s(after, instance)
            transitions.append(Transition(start, step, after, instance, gain))
    function.fit(transitions)
    return function


def test_nothing_is_worth_anything_before_something_was_measured() -> None:
    function = QFunction(SPACE, SHAPES, 0.9)
    assert function.values(kernel(5, 5), [("a", 1), ("b", -1)], 0).tolist() == [0.0, 0.0]
    function.fit([])
    assert function.values(kernel(5, 5), [("a", 1)], 1).tolist() == [0.0]


def test_it_knows_the_way_down_from_where_nothing_was_measured() -> None:
    function = fitted(120)
    for point in (kernel(0, 9), kernel(9, 0), kernel(2, 5), kernel(9, 9)):
        for instance in (0, 1):
            steps = list(SPACE.steps(point))
            best = steps[int(function.values(point, steps, instance).argmax())]
            gains = [log_s(point, instance) - log_s(SPACE.steps(point)[step], instance) for step in steps]
            assert gains[steps.index(best)] > 0.6 * max(gains)


def test_instances_differ_by_their_shape() -> None:
    function = fitted(120)
    up = [function.values(kernel(6, 5), [("b", 1)], instance)[0] for instance in (0, 1)]
    assert up[0] < 0 < up[1]


def test_with_a_discount_a_step_is_worth_what_comes_after_it_too() -> None:
    near, far = fitted(120), fitted(120, discount=0.9)
    first, whole = (each.values(kernel(0, 3), [("a", 1)], 0)[0] for each in (near, far))
    assert first > 0
    assert whole > 1.5 * first
