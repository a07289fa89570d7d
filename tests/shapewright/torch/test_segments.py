"""Which calls of a chain are made for how many rows at a time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapewright.torch.segments import ALL, SHARED_TIMES, Segment, Traffic, _costs, _ways, rounded, segments_of

CACHE = 1000


def chain(*calls: tuple[int, int]) -> tuple[Traffic, ...]:
    """Calls that read what the one before has written: the bytes of a row, and of their constants."""
    return tuple(Traffic(row, constants, (at - 1,) if at else ()) for at, (row, constants) in enumerate(calls))


@st.composite
def chains(draw: st.DrawFn, most: int = 8) -> tuple[Traffic, ...]:
    sizes = st.sampled_from([0, 1, 40, 200, 900, 5000])
    found = list[Traffic]()
    for at in range(draw(st.integers(1, most))):
        reads = draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else set[int]()
        found.append(Traffic(draw(sizes), draw(sizes), tuple(sorted(reads))))
    return tuple(found)


@given(chains(), st.integers(1, 20), st.integers(1, 4))
def test_every_call_is_of_one_segment(calls: tuple[Traffic, ...], rows: int, threads: int) -> None:
    found = segments_of(calls, rows, threads, CACHE)
    assert [call for each in found for call in range(each.first, each.end)] == list(range(len(calls)))
    assert all(each.first < each.end and 0 <= each.rows <= rows // threads for each in found)
    assert all(one.rows != other.rows for one, other in itertools.pairwise(found))


@given(chains(most=5), st.integers(2, 6), st.integers(1, 3))
def test_no_other_cut_has_less_traffic(calls: tuple[Traffic, ...], rows: int, threads: int) -> None:
    ways = _ways(rows, threads)
    costs = [_costs(calls, way, rows, threads, CACHE) for way in ways]

    def total(chosen: tuple[int, ...]) -> float:
        own = sum(costs[way].calls[call] for call, way in enumerate(chosen))
        return own + sum(
            costs[chosen[call]].entering[call] for call in range(1, len(calls)) if chosen[call] != chosen[call - 1]
        )

    found = segments_of(calls, rows, threads, CACHE)
    ours = tuple(ways.index(each.rows) for each in found for _ in range(each.first, each.end))
    least = min(map(total, itertools.product(range(len(ways)), repeat=len(calls))))
    assert total(ours) == pytest.approx(least)


@pytest.mark.parametrize("threads", [1, 2])
def test_early_layers_are_made_for_a_row_and_late_ones_for_all(threads: int) -> None:
    early, late = [(400, 10)] * 4, [(10, 4000)] * 4
    assert segments_of(chain(*early, *late), 8, threads, CACHE) == [Segment(0, 4, 1), Segment(4, 8, ALL)]


@pytest.mark.parametrize(("threads", "rows"), [(1, ALL), (2, 4), (4, 2)])
def test_what_caches_hold_is_divided_among_threads_alone(threads: int, rows: int) -> None:
    assert segments_of(chain(*[(10, 1)] * 5), 8, threads, CACHE) == [Segment(0, 5, rows)]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_who_reads_constants_most_of_the_time_reads_them_once(threads: int, rows: int) -> None:
    """As decoders do."""
    assert segments_of(chain(*[(10, 10_000)] * 5), rows, threads, CACHE) == [Segment(0, 5, ALL)]


def test_what_no_cache_holds_is_kept_in_the_one_that_is_shared() -> None:
    """A row of a value is larger than a core's own cache; all rows are in memory, some are not."""
    large = SHARED_TIMES * CACHE // 3
    (segment,) = segments_of(chain(*[(large, 10)] * 4), 8, 1, CACHE)
    assert segment.rows == 1


def test_what_joins_and_attention_read_is_worth_parts_in_a_decoder() -> None:
    """Their keys and values are read again at once; products read their weights for all rows."""
    calls = chain(*[(10, 10_000), (300, 0), (300, 0), (10, 0)] * 2)
    found = segments_of(calls, 8, 1, CACHE)
    assert [(each.first, each.rows) for each in found] == [(0, ALL), (1, 1), (4, ALL), (5, 1)]


def test_about_the_same_bytes_are_looked_at_once() -> None:
    """Of each word of a decoder."""
    before = segments_of.cache_info().misses
    for words in range(1024, 1100):
        segments_of(chain((rounded(words * 64), 0), (100, 5000), (rounded(words * 64), 0)), 8, 2, CACHE)
    assert segments_of.cache_info().misses <= before + 1


def test_fewer_rows_than_threads_are_made_by_all_of_them() -> None:
    assert segments_of(chain(*[(400, 10)] * 4), 3, 4, CACHE) == [Segment(0, 4, ALL)]
