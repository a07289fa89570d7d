"""Which calls of a chain are made for how many rows of a batch at a time.

What a call makes of few rows is still in a core's cache when the next one reads it; on the other hand its constants are
read again for each part of the rows. Early layers of a network of convolutions write much and have small weights, late
ones the other way round: so a chain is cut into segments, and each has parts of its own size. What is counted are the
bytes that a core reads and writes beyond its own cache. Nothing is measured: a call gives the same bits each time.

Elsewhere parts are called micro-batches, and to make all calls of a segment for one of them is to tile a fused group of
operators along the batch, or to run it depth first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from tuner.program.target.rates import TYPICAL

SHARED_TIMES = 8
"""The part of L3 that a core may count on, over its L2: the processor has other cores, and other machines on it."""
FROM_MEMORY = TYPICAL.l3_bytes / TYPICAL.memory_bytes
"""What reading memory takes, over reading L3."""
ALL = 0
"""In the place of a number of rows: all at once, by all threads together."""
DIGITS = 3
"""Binary digits of bytes that are looked at: a decoder's next word has about the same."""
MOST_KNOWN = 256


class Traffic(NamedTuple):
    """The bytes of a call: of a row that it writes, of its constants; and the calls whose rows it reads."""

    row: int
    constants: int
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The calls from ``first`` to before ``end``, which each thread makes for ``rows`` rows at most at a time, or all
    threads together for ALL."""

    first: int
    end: int
    rows: int


class _Costs(NamedTuple):
    """Bytes that a thread reads and writes beyond its cache: for each call, and where a segment begins with it."""

    calls: list[float]
    entering: list[float]


def rounded(number: int) -> int:
    """A number of bytes, rounded down to DIGITS binary digits."""
    dropped = number.bit_length() - DIGITS
    return number >> dropped << dropped if dropped > 0 else number


@lru_cache(MOST_KNOWN)
def segments_of(calls: tuple[Traffic, ...], rows: int, threads: int, cache: int) -> Sequence[Segment]:
    """The segments of least traffic for a batch of so many rows, each thread having a cache of so many bytes."""
    if rows < max(2, threads):
        return [Segment(0, len(calls), ALL)]
    ways = _ways(rows, threads)
    costs = [_costs(calls, way, rows, threads, cache) for way in ways]
    chosen = _cheapest(costs, len(calls))
    starts = [call for call in range(len(calls)) if not call or chosen[call] != chosen[call - 1]]
    ends = [*starts[1:], len(calls)]
    return [Segment(start, end, ways[chosen[start]]) for start, end in zip(starts, ends, strict=True)]


def _ways(rows: int, threads: int) -> list[int]:
    """Rows of a part: what a thread has, halved again and again; and all at once. The first of equals is chosen: the
    fewest parts; parts of their own where threads would wait for one another at each call."""
    parts = [rows // threads]
    while parts[-1] > 1:
        parts.append(-(-parts[-1] // 2))
    return [*parts, ALL] if threads > 1 else [ALL, *parts[1:]]


def _costs(calls: Sequence[Traffic], way: int, rows: int, threads: int, cache: int) -> _Costs:
    """Of a way. Where a segment begins, what it finds in its cache of values that were made before is charged to it;
    twice where such a value passes two beginnings, so that the sum is what a cut costs at most."""
    each, left = divmod(rows, threads)
    # Rows that are left are computed by all threads together. No cache holds the constants of a model.
    together, times = FROM_MEMORY / threads, -(-each // way) if way else 0
    constants = FROM_MEMORY * times + (together if left or way == ALL else 0)
    some, whole = (_touched(calls, at_once) for at_once in (way or rows / threads, rows / threads))
    own, entering = [call.constants * constants for call in calls], [0.0] * (len(calls) + 1)
    for at, call in enumerate(calls):
        for made in call.reads:
            moved = 2 * calls[made].row * rows / threads
            within, across = (_level(touched[at + 1] - touched[made], cache) for touched in (some, whole))
            # What threads make together, or in another segment, they read of one another.
            across = max(across, 1.0) if threads > 1 else across
            within = across if way == ALL else within
            own[at] += moved * within
            # From the call behind the one that made it to this one: as a difference, added up below.
            entering[made + 1] += moved * max(across - within, 0.0)
            entering[at + 1] -= moved * max(across - within, 0.0)
    return _Costs(own, list(accumulate(entering)))


def _touched(calls: Sequence[Traffic], rows: float) -> list[float]:
    """The bytes that all calls before each one touch where they are made for so many rows."""
    return [0.0, *accumulate(call.row * rows + call.constants for call in calls)]


def _level(since: float, cache: int) -> float:
    """What a byte costs that was touched so many others ago: where it is read from, L3 counting as one."""
    return 0.0 if since <= cache else 1.0 if since <= SHARED_TIMES * cache else FROM_MEMORY


def _cheapest(costs: Sequence[_Costs], calls: int) -> list[int]:
    """Of each call the number of its way. By dynamic programming: of each way the least cost of all calls so far where
    the last of them goes that way, and the way of the one before."""
    least, before = [0.0] * len(costs), list[list[int]]()
    for call in range(calls):
        other = min(range(len(costs)), key=least.__getitem__)
        came, now = list[int](), list[float]()
        for way, its in enumerate(costs):
            changed = least[other] + its.entering[call]
            came.append(way if least[way] <= changed else other)
            now.append(min(least[way], changed) + its.calls[call])
        before.append(came)
        least = now
    chosen = [min(range(len(costs)), key=least.__getitem__)]
    for came in reversed(before[1:]):
        chosen.append(came[chosen[-1]])
    return chosen[::-1]
