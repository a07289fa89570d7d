"""Sizes as expressions: they are what sizes of a moment are, and values do not overlap whatever these are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapewright.torch.arguments import HELPERS, Number, numbers_of, place_of, times
from shapewright.torch.placing import Within, places_of
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


@given(st.data(), GIVEN)
def test_what_is_joined_in_one_row_lies_where_the_join_does(data: st.DataObject, sizes: list[int]) -> None:
    """Parts are made, then joined, then their join is joined to one more; others live beside them."""
    parts = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    others, count = data.draw(st.lists(NEED, max_size=6)), len(parts)
    rows: Number = data.draw(st.one_of(st.just(1), st.just("g[0]")))
    size = [times([rows, 64, part]) for part in [*parts, sum(parts), 3, sum(parts) + 3]]
    needs: list[tuple[Number, int, int]] = [(size[at], at, count) for at in range(count)]
    needs += [(each, count + at, count + 2 + (at == 2)) for at, each in enumerate(size[count:])]
    within = {at: Within(count, rows, 64 * sum(parts[:at])) for at in range(count)}
    within |= {count: Within(count + 2, rows, 0), count + 1: Within(count + 2, rows, 64 * sum(parts))}
    every = [*needs, *((each, first, first + more) for each, first, more in others)]
    places = places_of(every, sizes, [sizes], within)
    known: dict[str, Any] = {**HELPERS, "g": sizes, "v": [sizes]}
    exec("\n".join(places.statements), known)
    at = [int(eval(str(offset), known)) for offset in places.offsets]
    ends = [begin + value(need[0], sizes) for begin, need in zip(at, every, strict=True)]
    assert max(ends) <= eval(str(places.total), known)
    if value(rows, sizes) == 1:
        assert all(at[number] == at[own.join] + value(own.behind, sizes) for number, own in within.items())
    # Where one row is joined its parts are of the join from the first of them on.
    for one, (_, first, last) in enumerate(every):
        for two, (_, since, until) in enumerate(every[:one]):
            is_part = value(rows, sizes) == 1 and one < count + 3 and two < count + 3
            if first <= until and since <= last and not is_part:
                assert ends[one] <= at[two] or ends[two] <= at[one]
