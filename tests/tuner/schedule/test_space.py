"""Micro-kernels and search spaces: identity, legality, and moves that never leave the space."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.strategies import KERNELS
from tuner.errors import IllegalKernel
from tuner.schedule.space import Axis, MicroKernel, SearchSpace, UnionSpace


def _even(kernel: MicroKernel) -> None:
    if (total := kernel["a"] + kernel["b"]) % 2:
        raise IllegalKernel(f"a+b={total} must be even")


SPACE = SearchSpace("rule", 3, (Axis("b", "second", (1, 2, 3)), Axis("a", "first", (1, 2, 3, 4))), _even)


@given(KERNELS)
def test_a_kernel_comes_back_from_json_under_its_id(kernel: MicroKernel) -> None:
    again = MicroKernel.from_json(json.loads(json.dumps(kernel.to_json())))
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert again.id == kernel.id


def test_the_order_of_values_does_not_matter_and_everything_else_does() -> None:
    kernel = MicroKernel("r", 1, (("b", 2), ("a", 1)))
    assert kernel == MicroKernel("r", 1, (("a", 1), ("b", 2)))
    others = [
        MicroKernel("s", 1, kernel.values),
        MicroKernel("r", 2, kernel.values),
        MicroKernel("r", 1, (("a", 2), ("b", 1))),
    ]
    assert len({other.id for other in others} | {kernel.id}) == 4
    assert (kernel["a"], str(kernel), len(kernel.id)) == (1, "a=1 b=2", 12)
    with pytest.raises(KeyError):
        kernel["c"]


BEFORE = SearchSpace("rule", 3, SPACE.axes, _even)
AFTER = SearchSpace("rule", 3, (*SPACE.axes, Axis("c", "third", (1, 2, 4), is_optional=True)), _even)


def test_a_kernel_of_before_an_axis_was_added_is_the_one_with_its_first_choice() -> None:
    old = BEFORE.kernel({"a": 2, "b": 2})
    assert AFTER.kernel({"a": 2, "b": 2}) == AFTER.kernel({"a": 2, "b": 2, "c": 1}) == old
    assert AFTER.values_of(old) == {"a": 2, "b": 2, "c": 1}
    assert AFTER.kernel({"a": 2, "b": 2, "c": 4}).values == (("a", 2), ("b", 2), ("c", 4))
    assert set(BEFORE.points()) < set(AFTER.points())


def test_an_added_axis_begins_with_what_kernels_without_it_do() -> None:
    with pytest.raises(ValueError, match="an added axis begins with 1, not 2"):
        Axis("c", "third", (2, 4), is_optional=True)


def test_a_space_tells_kernels_of_its_axes() -> None:
    old, new = BEFORE.kernel({"a": 2, "b": 2}), AFTER.kernel({"a": 2, "b": 2, "c": 4})
    assert (AFTER.has_axes_of(old), AFTER.has_axes_of(new)) == (True, True)
    assert (BEFORE.has_axes_of(old), BEFORE.has_axes_of(new)) == (True, False)
    assert not AFTER.has_axes_of(MicroKernel("rule", 3, (("a", 2), ("c", 4))))


def test_every_move_can_change_an_added_axis() -> None:
    rng, old = np.random.default_rng(0), BEFORE.kernel({"a": 2, "b": 2})
    new = AFTER.kernel({"a": 2, "b": 2, "c": 4})
    assert AFTER.steps(old)["c", 1] == AFTER.kernel({"a": 2, "b": 2, "c": 2})
    assert ("c", -1) not in AFTER.steps(old)
    assert AFTER.position(new)[-1] == 1.0
    assert {AFTER.sample(rng).get("c") for _ in range(200)} == {1, 2, 4}
    assert {AFTER.mutate(old, rng).get("c") for _ in range(200)} == {1, 2, 4}
    assert {AFTER.crossover(old, new, rng).get("c") for _ in range(200)} == {1, 4}


def test_a_space_of_one_axis_has_neighbours_to_move_to() -> None:
    space = SearchSpace("rule", 1, (Axis("a", "the only one", (1, 2)),), check=lambda kernel: None)
    kernel = space.kernel({"a": 1})
    assert {space.mutate(kernel, np.random.default_rng(seed))["a"] for seed in range(8)} == {2}


def test_the_space_lists_what_check_lets_pass() -> None:
    points = list(SPACE.points())
    assert SPACE.size == 12
    assert len(points) == len(set(points)) == 6
    assert all((point["a"] + point["b"]) % 2 == 0 for point in points)
    assert all((point.rule, point.rule_version) == ("rule", 3) for point in points)


def test_illegal_points_say_why() -> None:
    with pytest.raises(IllegalKernel, match=r"a\+b=3 must be even"):
        SPACE.kernel({"a": 1, "b": 2})
    with pytest.raises(IllegalKernel, match=r"b=9 is not one of \(1, 2, 3\)"):
        SPACE.kernel({"a": 1, "b": 9})
    assert SPACE.legal({"a": 1, "b": 2}) is None
    assert SPACE.legal({"a": 1, "b": 3}) == SPACE.kernel({"b": 3, "a": 1})


@given(st.integers(0, 2**32 - 1))
def test_every_move_gives_a_legal_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = set(SPACE.points())
    first, second = SPACE.sample(rng), SPACE.sample(rng)
    assert {first, second, SPACE.mutate(first, rng), SPACE.crossover(first, second, rng)} <= points


def test_sampling_reaches_every_point_alike() -> None:
    rng = np.random.default_rng(0)
    draws = [SPACE.sample(rng) for _ in range(1200)]
    counts = [draws.count(point) for point in SPACE.points()]
    assert min(counts) > 140
    assert max(counts) < 260


def test_mutation_changes_one_or_two_axes_and_reaches_every_point() -> None:
    rng = np.random.default_rng(0)
    start = SPACE.kernel({"a": 2, "b": 2})
    result = {SPACE.mutate(start, rng) for _ in range(300)}
    assert result == set(SPACE.points()) - {start}


def test_a_space_without_a_legal_point_says_so() -> None:
    def never(kernel: MicroKernel) -> None:
        raise IllegalKernel("no")

    empty = SearchSpace("rule", 1, SPACE.axes, never)
    with pytest.raises(IllegalKernel, match="the limits exclude the space"):
        empty.sample(np.random.default_rng(0))
    lonely = MicroKernel("rule", 1, (("a", 1), ("b", 1)))
    assert empty.mutate(lonely, np.random.default_rng(0)) == lonely
    assert empty.crossover(lonely, lonely, np.random.default_rng(0)) == lonely


# -- several rules ----------------------------------------------------------------------------------------------------
OTHER = SearchSpace(
    "other",
    1,
    (Axis("c", "third", (1, 2, 3, 4, 5)), Axis("d", "don't care beside c=1", (0, 1))),
    check=lambda kernel: None,
    canonicalise=lambda values: {**values, "d": values["d"] if values["c"] > 1 else 0},
)
UNION = UnionSpace((SPACE, OTHER))


def test_a_union_has_the_points_of_its_spaces() -> None:
    assert UNION.size == SPACE.size + OTHER.size
    assert set(UNION.points()) == {*SPACE.points(), *OTHER.points()}
    assert {kernel.rule for kernel in UNION.points()} == {"rule", "other"}


@given(st.integers(0, 2**32 - 1))
def test_moves_in_a_union_stay_within_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = {space.rule: set(space.points()) for space in UNION.spaces}
    first, second = UNION.sample(rng), UNION.sample(rng)
    assert first in points[first.rule]
    moved = [UNION.mutate(first, rng), UNION.crossover(first, second, rng), *UNION.neighbours(first)]
    assert set(moved) <= points[first.rule]
    if first.rule != second.rule:
        assert UNION.crossover(first, second, rng) == first


def test_every_rule_of_a_union_is_drawn_alike_and_wholly() -> None:
    rng = np.random.default_rng(0)
    draws = [UNION.sample(rng) for _ in range(1000)]
    assert set(draws) == set(UNION.points())
    assert 400 < sum(kernel.rule == "rule" for kernel in draws) < 600


def test_steps_have_their_axis_and_direction() -> None:
    start = OTHER.kernel({"c": 2, "d": 1})
    assert OTHER.steps(start) == {
        ("c", -1): OTHER.kernel({"c": 1, "d": 0}),
        ("c", 1): OTHER.kernel({"c": 3, "d": 1}),
        ("d", -1): OTHER.kernel({"c": 2, "d": 0}),
    }
    assert UNION.steps(start) == OTHER.steps(start)
    # At c=1 a step of d comes back to where it began.
    assert OTHER.steps(OTHER.kernel({"c": 1, "d": 0})) == {("c", 1): OTHER.kernel({"c": 2, "d": 0})}
    assert SPACE.steps(SPACE.kernel({"a": 1, "b": 1})) == {}, "no sum next to an even one is even"


def test_a_position_is_a_share_of_each_axis_choices() -> None:
    kernel = OTHER.kernel({"c": 2, "d": 1})
    assert [axis.name for axis in UNION.axes_of(kernel)] == ["c", "d"]
    assert UNION.position(kernel) == OTHER.position(kernel) == [0.25, 1.0]
    lonely = SearchSpace("rule", 1, (Axis("a", "the only choice", (7,)),), check=lambda kernel: None)
    assert lonely.position(lonely.kernel({"a": 7})) == [0.0]


def test_the_smallest_has_the_first_choice_of_every_axis_or_of_all_but_one() -> None:
    assert UNION.smallest() == [SPACE.kernel({"a": 1, "b": 1}), OTHER.kernel({"c": 1, "d": 0})]
    odd = SearchSpace("rule", 3, (Axis("b", "second", (2, 3)), Axis("a", "first", (1, 2, 4))), _even)
    assert odd.smallest() == [odd.kernel({"a": 1, "b": 3}), odd.kernel({"a": 2, "b": 2}), odd.kernel({"a": 4, "b": 2})]


def test_a_kernel_belongs_to_the_space_of_the_rule_that_it_names() -> None:
    assert UNION.space_of(SPACE.kernel({"a": 1, "b": 1})) is SPACE
    assert UNION.space_of(OTHER.kernel({"c": 2, "d": 1})) is OTHER
    stranger = MicroKernel("stranger", 1, (("a", 1),))
    for move in (UNION.space_of, UNION.neighbours):
        with pytest.raises(IllegalKernel, match="of rule stranger, not one of rule, other"):
            move(stranger)


def test_neighbours_are_one_step_of_one_axis_away() -> None:
    start = OTHER.kernel({"c": 2, "d": 1})
    # At c=1 the axis d has no effect: that neighbour is the canonical one.
    assert set(OTHER.neighbours(start)) == {
        OTHER.kernel({"c": 1, "d": 0}),
        OTHER.kernel({"c": 3, "d": 1}),
        OTHER.kernel({"c": 2, "d": 0}),
    }
    assert UNION.neighbours(start) == OTHER.neighbours(start)
