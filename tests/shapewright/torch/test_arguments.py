"""Sizes as expressions: they are what sizes of a moment are, and values do not overlap whatever these are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapewright.torch.arguments import HELPERS, Number, numbers_of, place_of, places_of, times
from shapewright.torch.steps import Made, Sizes, sizes_of

GIVEN = st.lists(st.integers(0, 7), min_size=2, max_size=2)
SIZE = st.one_of(st.integers(1, 5), st.sampled_from([-1, -2]))


def value(number: Number, sizes: Sequence[int]) -> int:
    return number if isinstance(number, int) else int(eval(number, {**HELPERS, "g": sizes, "v": [sizes]}))


@given(st.lists(SIZE, max_size=4), GIVEN)
def test_sizes_are_those_of_the_moment(sizes: list[int], given: list[int]) -> None:
    numbers = numbers_of(tuple(sizes))
    assert [value(each, given) for each in numbers] == sizes_of(tuple(sizes), given)
    assert value(times(numbers), given) == math.prod(sizes_of(tuple(sizes), given))


@given(st.lists(SIZE, min_size=1, max_size=3), st.integers(1, 4), st.sampled_from([None, 0, 1, -1]), GIVEN)
def test_what_is_seen_of_a_value_is_where_it_is_at_the_moment(
    sizes: list[int], pieces: int, piece: int | None, given: list[int]
) -> None:
    known: Sizes = tuple(sizes)
    whole = times([pieces, *numbers_of(known)])
    for seen in (known, (*known[:-1], None)) if piece is None else (known,):
        made = Made(0, seen, piece)
        found, first = place_of(made, whole)
        assert ([value(each, given) for each in found], value(first, given)) == made.placed(value(whole, given), given)


NEED = st.tuples(st.one_of(st.integers(0, 900), st.sampled_from(["g[0]*100", "g[1]*30", "v[0][1]*64*g[0]"])),
                 st.integers(0, 9), st.integers(0, 5))  # fmt: skip


@given(st.lists(NEED, max_size=12), GIVEN, st.lists(GIVEN, min_size=1, max_size=3))
def test_values_that_are_needed_at_the_same_time_never_overlap(
    drawn: list[tuple[Number, int, int]], at_first: list[int], moments: list[list[int]]
) -> None:
    needs = sorted(((size, first, first + more) for size, first, more in drawn), key=lambda need: need[1])
    places = places_of(needs, at_first, [at_first])
    for sizes in (at_first, *moments):
        known = {**HELPERS, "g": sizes, "v": [sizes]}
        exec("\n".join(places.statements), known)
        ends = list[tuple[int, int, int, int]]()
        for offset, (size, first, last) in zip(places.offsets, needs, strict=True):
            begin = int(eval(str(offset), known))
            end = begin + value(size, sizes)
            assert begin % 64 == 0
            assert end <= eval(str(places.total), known)
            for other_begin, other_end, since, until in ends:
                if first <= until and since <= last:
                    assert end <= other_begin or begin >= other_end
            ends.append((begin, end, first, last))


@pytest.mark.parametrize("unit", [64, "g[0]*64"])
def test_values_take_no_more_than_what_is_needed_at_once(unit: Number) -> None:
    # Of a network whose images become smaller: a large value leaves room for several small ones.
    sizes = (3, 3, 3, 12, 3, 1, 4, 4, 1, 4)
    needs = [(times([size, unit]), step, step + 1 + (step == 0)) for step, size in enumerate(sizes)]
    places = places_of(needs, [5], [])
    known: dict[str, Any] = {**HELPERS, "g": [7], "v": []}
    exec("\n".join(places.statements), known)
    assert eval(str(places.total), known) == 15 * 64 * (1 if unit == 64 else 7)
