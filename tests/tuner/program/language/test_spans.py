"""Sets of sizes: what covers what, and the sizes of an extent over its variables."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.program.language.dims import DimExpr, parse_dim
from tuner.program.language.spans import (
    MAX_EVALUATED,
    MAX_LISTED,
    Span,
    contains,
    count,
    covers,
    ends,
    span_from_json,
    span_of,
    span_of_extent,
    span_to_json,
)

SMALL = st.integers(0, 40)
RANGES = st.builds(lambda low, more, step: range(low, low + more + 1, step), SMALL, SMALL, st.integers(1, 9))
EXACT = RANGES | st.sets(SMALL, min_size=1, max_size=8).map(span_of)
ENDS = st.tuples(SMALL, SMALL).map(lambda pair: (min(pair), max(pair)))
SPANS: st.SearchStrategy[Span] = EXACT | ENDS


def sizes(span: Span) -> set[int]:
    return set(range(span[0], span[1] + 1)) if isinstance(span, tuple) else set(span)


@given(EXACT, EXACT)
def test_a_span_covers_its_parts_and_nothing_else(one: Span, other: Span) -> None:
    assert covers(one, other) == (sizes(other) <= sizes(one))


@given(SPANS, SPANS)
def test_of_ends_alone_the_ends_count(one: Span, other: Span) -> None:
    assert covers(one, ends(other)) == covers(ends(one), other)
    assert covers(one, ends(other)) == (ends(one)[0] <= ends(other)[0] and ends(other)[1] <= ends(one)[1])


@given(SPANS)
def test_a_span_knows_its_sizes_and_comes_back_from_json(span: Span) -> None:
    own = sizes(span)
    assert covers(span, span)
    assert (ends(span), count(span)) == ((min(own), max(own)), len(own))
    assert {size for size in range(-1, 90) if contains(span, size)} == own
    again = span_from_json(json.loads(json.dumps(span_to_json(span))))
    assert sizes(again) == own
    assert isinstance(again, tuple) == isinstance(span, tuple)


def test_steps_cover_themselves_and_coarser_ones() -> None:
    eights, every = range(8, 1025, 8), range(1, 1025)
    powers = span_of({2**power for power in range(11)})
    assert covers(every, eights)
    assert covers(every, powers)
    assert not covers(eights, every)
    assert not covers(powers, every)
    assert covers(eights, range(8, 1025, 64))
    assert covers(eights, range(16, 17))
    assert not covers(eights, range(8, 1025, 4))
    assert not covers(eights, range(12, 1025, 8))
    assert not covers(eights, powers)
    assert covers(eights, span_of({8, 16, 512}))


def test_evenly_spaced_sizes_are_a_range_and_many_others_are_held_by_one() -> None:
    assert span_of([24, 8, 16]) == range(8, 25, 8)
    assert span_of([5]) == range(5, 6)
    assert span_of([5, 24, 44]) == frozenset((5, 24, 44))
    squares = [4 * number**2 for number in range(MAX_LISTED + 1)]
    assert span_of(squares) == range(0, 4 * MAX_LISTED**2 + 1, 4)


EXTENTS = st.sampled_from(
    ["16*A", "A*B", "2*A+B", "A*A-A", "A//2", "A*B+B+3", "100-A", "A%3", "A*A*B", "40*A-B*B+1600"]
)
STEPS = st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 12))


@given(EXTENTS, STEPS, STEPS)
def test_the_span_of_an_extent_holds_its_sizes(text: str, a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    variables = {name: range(low, low + many * step, step) for name, (low, many, step) in (("A", a), ("B", b))}
    extent = parse_dim(text)
    used = {name: variables[name] for name in sorted(extent.variables)}
    own = {extent.evaluate(dict(zip(used, each, strict=True))) for each in itertools.product(*used.values())}
    span = span_of_extent(extent, variables)
    assert all(contains(span, size) for size in own)
    shapes = a[1] * (b[1] if len(used) == 2 else 1)
    if shapes <= MAX_EVALUATED and len(own) <= MAX_LISTED:
        assert count(span) == len(own)


def test_the_step_of_a_long_extent_is_known_without_its_sizes() -> None:
    variables: dict[str, Span] = {"A": range(1, 1001), "B": range(8, 8001, 8), "C": (1, 4)}
    assert span_of_extent(parse_dim("16*A"), variables) == range(16, 16001, 16)
    assert span_of_extent(parse_dim("A*B"), variables) == range(8, 8_000_001, 8)
    assert span_of_extent(parse_dim("A*B+4"), variables) == range(12, 8_000_005, 8)
    assert span_of_extent(parse_dim("(A+B)//2"), variables) == range(4, 4501)
    assert span_of_extent(DimExpr.var("B") * 2 + 1, variables) == range(17, 16002, 16)
    assert span_of_extent(parse_dim("A*C"), variables) == (1, 4000)


@pytest.mark.parametrize(
    "data", ["ab", 7, None, [], [1], ["1", "9"], [9, 1], [1, 9, 0], {"values": []}, {"values": "12"}, {}]
)
def test_what_is_no_set_of_sizes_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        span_from_json(data)
