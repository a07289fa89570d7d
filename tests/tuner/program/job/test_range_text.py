"""Ranges as they are written in queries and options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.job.range_text import format_ranges, parse_ranges
from tuner.program.language.dims import MAX_DIM
from tuner.program.language.spans import Span

SIZES = st.integers(0, MAX_DIM)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)


def test_ranges_are_read_with_or_without_an_end() -> None:
    assert parse_ranges("T=1..512, S=4") == {"T": (1, 512), "S": (4, 4)}
    assert parse_ranges("T=8..512:8, S = 1|4|2") == {"T": range(8, 513, 8), "S": frozenset((1, 2, 4))}
    assert parse_ranges("S=1|2|3,T=5..9:3") == {"S": range(1, 4), "T": range(5, 9, 3)}
    assert parse_ranges("") == {}
    assert format_ranges({}) == "any size"


@pytest.mark.parametrize(
    "text",
    [
        *("T", "T=", "T=1..", "T=..5", "T=5..1", "T=1-5", "T=1...5", "T=1..5,T=2", "1=2", "T=-1..3", "T=9999999999"),
        *("T=²", "T=1..5:0", "T=5..1:2", "T=1:2", "T=1..5:-1", "T=1..5:", "T=1|", "T=1|2..5", "T=|1"),
    ],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_ranges(text)
    assert caught.value.field == "range"


ENDS = st.tuples(SIZES, SIZES).map(lambda ends: (min(ends), max(ends)))
STEPPED = st.builds(lambda low, step, last: range(low, low + step * last + 1, step), *[st.integers(2, 999)] * 3)
LISTED = st.just(frozenset((1, 2, 4, 8)))


@given(st.dictionaries(NAMES, ENDS | STEPPED | LISTED, min_size=1))
def test_what_is_written_is_read_again(ranges: dict[str, Span]) -> None:
    assert parse_ranges(format_ranges(ranges)) == ranges
