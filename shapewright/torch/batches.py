"""A batch in parts: the calls of a segment of a chain for some of its rows (images, say), then for the next ones.

What a call makes of few rows is still in a cache when the next call reads it. Threads that compute parts of their own
wait for one another once in a segment, and not at each kernel, and none has less to do than another because a kernel
cannot be cut evenly; rows that are not as many as threads are computed by all threads together. Which calls are a
segment, and how many rows a part has, is chosen by what they read and write (``shapewright.torch.segments``).

What is made and read in parts of one segment lies in the memory of the thread that computes a part. What another
segment reads, or is made of all rows at once, is kept of all rows.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from shapewright.models.lifted import View
from shapewright.torch.arguments import Bound, Form, Placed, Shapes
from shapewright.torch.joins import Copying
from shapewright.torch.placing import planned
from shapewright.torch.plan import Call
from shapewright.torch.segments import ALL, Segment, Traffic, rounded, segments_of
from shapewright.torch.steps import ChainPlan, Made

Source = int | tuple[Made, View]
"""An operand of a call: which constant of the chain's, from -1 downwards which of what varies, or what a call made and
how it is joined."""
Key = TypeVar("Key")
_Need = tuple[int, int, int]
"""The bytes of a value, and the calls between which it is live."""
MOST_PLANS = 64
OF_A_PART = -1
"""Behind an operand's offset, in the place of the bytes of a row: it lies in the memory of who computes a part."""


class _Segment(ctypes.Structure):
    """As native.c takes it."""

    _fields_ = (
        ("first", ctypes.c_int64), ("end", ctypes.c_int64), ("row", ctypes.c_int64),
        ("count", ctypes.c_int64), ("large", ctypes.c_int64), ("rows", ctypes.c_int64),
        ("of_large", ctypes.c_void_p), ("of_others", ctypes.c_void_p),
        ("own", ctypes.c_int64), ("bytes", ctypes.c_int64),
    )  # fmt: skip


class Parts(ctypes.Structure):
    """As native.c takes them."""

    _fields_ = (("count", ctypes.c_int64), ("segments", ctypes.POINTER(_Segment)))


@dataclass(frozen=True, slots=True)
class _Run:
    """Calls of a segment from a row on: in ``count`` parts, the first ``large`` of which have a row more than ``rows``,
    or, if there are none, for ``rows`` at once."""

    segment: Segment
    row: int
    count: int
    large: int
    rows: int

    @property
    def sizes(self) -> set[int]:
        return {self.rows, self.rows + 1} if self.large else {self.rows}


class _Layout(NamedTuple):
    """A chain's memory: by call the offset of its value, and OF_A_PART or the bytes of a row; by segment where the
    memory of those who compute parts begins, and the bytes that each of them has; the bytes of all."""

    places: dict[int, tuple[int, int]]
    own: dict[Segment, tuple[int, int]]
    bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls whose rows are independent. ``sizes``: which of a chain's sizes count rows, as the number of images and
    that of all their pixels; ``varying``: of each tensor that is new at every call, whether it has rows; ``operands``:
    the same of those of each call, the output last; ``constants`` and ``reads``: which constants each call reads, and
    what other calls make; ``last``: of each call the last one that reads its value; ``within``: the calls whose values
    lie in that of a join where a row is computed at a time; ``cache``: the bytes of a core's L2."""

    sizes: frozenset[int]
    varying: tuple[bool, ...]
    operands: tuple[tuple[bool, ...], ...]
    read: Sequence[Sequence[Source]]
    constants: Sequence[Sequence[int]]
    reads: Sequence[tuple[int, ...]]
    last: Mapping[int, int]
    within: Mapping[int, int]
    cache: int

    def in_parts(
        self, form: Form, whole: Bound, sizes: Sequence[int], shapes: Shapes, constants: Sequence[int], threads: int
    ) -> Bound:  # fmt: skip
        """``whole``, to be run in parts if that is worth while. ``shapes``: of what varies; ``constants``: the bytes of
        each."""
        # What all of them are multiples of can be divided.
        rows = math.gcd(*[sizes[each] for each in self.sizes])
        if rows < 2:
            return whole
        traffic = [
            Traffic(
                rounded(operands[-1].bytes(whole.numbers) // rows),
                rounded(sum([constants[each] for each in its])),
                reads,
            )
            for operands, its, reads in zip(form.placed, self.constants, self.reads, strict=True)
        ]
        segments = segments_of(tuple(traffic), rows, threads, self.cache)
        if segments[0].rows == ALL and len(segments) == 1:
            return whole
        runs = [run for segment in segments for run in _runs(segment, rows, threads)]
        numbers: dict[int, array[int]] = {}
        for count in set().union(*[run.sizes for run in runs]):
            some = self._some(form, whole, sizes, shapes, (count, rows))
            if some is None:
                return whole
            numbers[count] = some
        layout = self._layout(form, whole, runs, numbers, (rows, threads))
        for at, (operands, sources) in enumerate(zip(form.placed, self.read, strict=True)):
            makers = [*(None if isinstance(each, int) else each[0].step for each in sources), at]
            for operand, made in zip(operands, makers, strict=True):
                if made is not None and operand.base == form.memory:
                    for its in numbers.values():
                        its[operand.offset_at], its[operand.offset_at + 1] = layout.places[made]
        described = (_Segment * len(runs))(*[
            _Segment(
                run.segment.first, run.segment.end, run.row, run.count, run.large, run.rows,
                *[numbers[size].buffer_info()[0] for size in (max(run.sizes), run.rows)],
                *layout.own.get(run.segment, (0, 0)),
            )
            for run in runs
        ])  # fmt: skip
        kept = [*whole.kept, *numbers.values(), described]
        return replace(whole, bytes=layout.bytes, parts=Parts(len(runs), described), kept=kept)

    def _some(
        self, form: Form, whole: Bound, sizes: Sequence[int], shapes: Shapes, share: tuple[int, int]
    ) -> array[int] | None:  # fmt: skip
        """The numbers of the calls for a share of the rows, so many of so many; None if they are not those for all of
        them but for the number of rows.

        Values lie row by row and are seen as a whole: the first k of n rows of any value are the same share of it,
        however many axes it is seen with.
        """
        some_rows, all_rows = share
        given = [size * some_rows // all_rows if at in self.sizes else size for at, size in enumerate(sizes)]
        viewed = [
            [shape[0] * some_rows // all_rows, *shape[1:]] if has_rows and shape else shape
            for shape, has_rows in zip(shapes, self.varying, strict=True)
        ]
        some = form.bound(given, viewed).numbers
        for operands, have_rows in zip(form.placed, self.operands, strict=True):
            for operand, has_rows in zip(operands, have_rows, strict=True):
                at, rank = operand.at, operand.rank
                # Where values lie in the chain's memory is planned anew.
                first, last = at + (1 if has_rows else 0), operand.offset_at + (0 if operand.base == form.memory else 1)
                if whole.numbers[first:last] != some[first:last]:
                    return None
                if has_rows:
                    size = operand.bytes(whole.numbers)
                    if not rank or whole.numbers[at] * some_rows != some[at] * all_rows or size % all_rows:
                        return None
                    some[operand.offset_at + 1] = size // all_rows
        return some

    def _layout(
        self, form: Form, whole: Bound, runs: Sequence[_Run], numbers: Mapping[int, array[int]], batch: tuple[int, int]
    ) -> _Layout:  # fmt: skip
        """Where values lie that are no outputs of the chain, of so many rows and for so many threads."""
        rows, threads = batch
        inner = {step: operands[-1] for step, operands in enumerate(form.placed) if operands[-1].base == form.memory}
        row = {step: operand.bytes(whole.numbers) // rows for step, operand in inner.items()}
        segment_of = {step: run.segment for run in runs for step in range(run.segment.first, run.segment.end)}
        most = {run.segment: max(max(its.sizes) for its in runs if its.segment == run.segment) for run in runs}
        joined = self._in_joins(inner, numbers, segment_of, most)
        # The calls between which a value is live; a join is as soon as what lies in it.
        since = {step: step for step in inner}
        for step, (join, _) in joined.items():
            since[join] = min(since[join], step)
        needs, own = dict[int | Segment, _Need](), dict[Segment, dict[int, _Need]]()
        for step in inner.keys() - joined.keys():
            begin, last = since[step], self.last[step]
            made, read = segment_of[step], segment_of[last]
            if made == read and made.rows != ALL:
                own.setdefault(made, {})[step] = row[step] * most[made], begin, last
                continue
            # One part is at the first call of a segment while another one is at its last.
            begin, last = begin if made.rows == ALL else made.first, last if read.rows == ALL else read.end - 1
            needs[step] = row[step] * rows, begin, last
        places, regions = dict[int, tuple[int, int]](), dict[Segment, tuple[int, int]]()
        for segment, its in own.items():
            offsets, size = _planned(its)
            places |= {step: (offset, OF_A_PART) for step, offset in offsets.items()}
            # While a segment runs its threads have a region, which is planned as values are.
            needs[segment] = size * threads, segment.first, segment.end - 1
            regions[segment] = 0, size
        found, total = _planned(needs)
        for key, offset in found.items():
            if isinstance(key, Segment):
                regions[key] = offset, regions[key][1]
            else:
                places[key] = offset, row[key]
        for step, (join, further) in joined.items():
            offset, row_bytes = places[join]
            places[step] = offset + further, row_bytes
        return _Layout(places, regions, total)

    def _in_joins(
        self, inner: Mapping[int, Placed], numbers: Mapping[int, array[int]], segment_of: Mapping[int, Segment],
        most: Mapping[Segment, int],
    ) -> dict[int, tuple[int, int]]:  # fmt: skip
        """The values that lie in that of a join, where a row is computed at a time: of which call, and how far behind
        its beginning. As they are placed for one row, whoever lies between its ends lies in it."""
        found = dict[int, tuple[int, int]]()
        for step, join in self.within.items():
            segment = segment_of[step]
            if segment != segment_of[join] or segment.rows != 1 or most[segment] != 1:
                continue
            its, whole = inner[step], inner[join]
            further = numbers[1][its.offset_at] - numbers[1][whole.offset_at]
            if 0 <= further < whole.bytes(numbers[1]):
                found[step] = join, further
        return found


def batch_of(
    plan: ChainPlan, calls: Sequence[Call | Copying], read: Sequence[Sequence[Source]], last: Mapping[int, int],
    within: Mapping[int, int],
) -> Batch | None:  # fmt: skip
    """The batch of a chain; None where a call computes rows of several others, or there are no rows.

    ``read``: of each call where its operands come from but for the output; ``last`` and ``within``: see Batch.
    """
    views = [each for step in plan.steps for each in (step, *step.inputs) if not isinstance(each, int)]
    first = (view.sizes[0] if view.sizes else None for view in views)
    sizes = frozenset(-1 - size for size in first if size is not None and size < 0)
    if not sizes or not any(isinstance(call, Call) for call in calls):
        return None
    varying, found = dict[int, bool](), list[tuple[bool, ...]]()
    for call, operands in zip(calls, read, strict=True):
        if (have_rows := call.rows) is None:
            return None
        for each, has_rows in zip(operands, have_rows, strict=True):
            if not isinstance(each, int):
                if not has_rows or each[0].piece is not None:
                    return None
            # A constant has no rows. A tensor that one call needs as a whole is not cut for another.
            elif has_rows if each >= 0 else varying.setdefault(-1 - each, has_rows) != has_rows:
                return None
        found.append((*have_rows, True))
    return Batch(
        sizes, tuple(varying[each] for each in sorted(varying)), tuple(found), read,
        [[each for each in sources if isinstance(each, int) and each >= 0] for sources in read],
        [tuple(each[0].step for each in sources if not isinstance(each, int)) for sources in read],
        last, within, min(call.l2_bytes for call in calls if isinstance(call, Call)),
    )  # fmt: skip


def _runs(segment: Segment, rows: int, threads: int) -> list[_Run]:
    """How a segment is made for so many rows."""
    if segment.rows == ALL:
        return [_Run(segment, 0, 0, 0, rows)]
    each = rows // threads
    count, left = threads * -(-each // segment.rows), rows % threads
    own, large = divmod(each * threads, count)
    parts = _Run(segment, 0, count, large, own)
    return [parts, _Run(segment, rows - left, 0, 0, left)] if left else [parts]


def _planned(needs: Mapping[Key, _Need]) -> tuple[dict[Key, int], int]:
    """Offsets, and the bytes of all. Of about as many bytes there is one plan: a decoder's next word has it."""
    places, total = _plan(tuple((_rounded_up(size), first, last) for size, first, last in needs.values()))
    return dict(zip(needs, places, strict=True)), total


def _rounded_up(size: int) -> int:
    """``size``, rounded up to four binary digits: an eighth more at most."""
    dropped = max(size.bit_length() - 4, 0)
    return -(-size >> dropped << dropped)


@lru_cache(MOST_PLANS)
def _plan(needs: tuple[_Need, ...]) -> tuple[list[int], int]:
    return planned(needs)
