"""A batch in parts: the calls of a segment of a chain for some of its rows (images, say), then for the next ones.

What a call makes of few rows is still in a cache when the next call reads it. Threads that compute parts of their own
wait for one another once in a segment, and not at each kernel, and none has less to do than another because a kernel
cannot be cut evenly; rows that are not as many as threads are computed by all threads together. Which calls are a
segment, and how many rows a part has, is chosen by what they read and write (``shapewright.torch.segments``).

What a segment makes and reads itself lies in the memory of who computes a part; what another segment reads is kept of
all rows.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shapewright.models.lifted import View
from shapewright.torch.arguments import Bound, Form, Placed, Shapes
from shapewright.torch.joins import Copying
from shapewright.torch.placing import planned
from shapewright.torch.plan import Call
from shapewright.torch.segments import ALL, Segment, Traffic, segments_of
from shapewright.torch.steps import ChainPlan, Made

Source = int | tuple[Made, View]
"""An operand of a call: which constant of the chain's, from -1 downwards which of what varies, or what a call made and
how it is joined."""
OWN = -1
"""Behind an operand's offset, in the place of the bytes of a row: it lies in the memory of who computes a part."""


class _Segment(ctypes.Structure):
    """As native.c takes it."""

    _fields_ = (
        ("first", ctypes.c_int64), ("end", ctypes.c_int64), ("row", ctypes.c_int64),
        ("count", ctypes.c_int64), ("large", ctypes.c_int64), ("rows", ctypes.c_int64),
        ("of_large", ctypes.c_void_p), ("of_others", ctypes.c_void_p),
    )  # fmt: skip


class Parts(ctypes.Structure):
    """As native.c takes them."""

    _fields_ = (
        ("count", ctypes.c_int64), ("segments", ctypes.POINTER(_Segment)),
        ("shared", ctypes.c_int64), ("bytes", ctypes.c_int64),
    )  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls whose rows are independent. ``sizes``: which of a chain's sizes count rows, as the number of images and
    that of all their pixels; ``varying``: of each tensor that is new at every call, whether it has rows; ``operands``:
    the same of those of each call, the output last; ``within``: the calls whose values lie in that of a join where a
    row is computed at a time."""

    sizes: frozenset[int]
    varying: tuple[bool, ...]
    operands: tuple[tuple[bool, ...], ...]
    calls: Sequence[Call | Copying]
    read: Sequence[Sequence[Source]]
    within: Mapping[int, int]

    def in_parts(
        self, form: Form, whole: Bound, sizes: Sequence[int], shapes: Shapes, constants: Sequence[int], threads: int
    ) -> Bound:  # fmt: skip
        """``whole``, to be run in parts if that is worth while. ``shapes``: of what varies; ``constants``: the bytes of
        each."""
        # What all of them are multiples of can be divided.
        rows = math.gcd(*[sizes[each] for each in self.sizes])
        if rows < 2:
            return whole
        placed = list(form.operands())
        traffic = [
            Traffic(
                operands[-1].bytes(whole.numbers) // rows,
                sum(constants[each] for each in sources if isinstance(each, int) and each >= 0),
                tuple(each[0].step for each in sources if not isinstance(each, int)),
            )
            for operands, sources in zip(placed, self.read, strict=True)
        ]
        cache = min(call.l2_bytes for call in self.calls if isinstance(call, Call))
        segments = segments_of(traffic, rows, threads, cache)
        if segments[0].rows == ALL and len(segments) == 1:
            return whole
        runs = [run for segment in segments for run in _runs(segment, rows, threads)]
        numbers: dict[int, array[int]] = {}
        for count in set().union(*[run.sizes for run in runs]):
            some = self._some(form, placed, whole, sizes, shapes, (count, rows))
            if some is None:
                return whole
            numbers[count] = some
        shared, own = self._place(form, placed, whole, runs, numbers, rows)
        described = (_Segment * len(runs))(*[
            _Segment(
                run.segment.first, run.segment.end, run.row, run.count, run.large, run.rows,
                *[numbers[rows].buffer_info()[0] for rows in (max(run.sizes), run.rows)],
            )
            for run in runs
        ])  # fmt: skip
        parts = Parts(len(runs), described, shared, own)
        kept = [*whole.kept, *numbers.values(), described]
        return replace(whole, bytes=shared + own * threads, parts=parts, kept=kept)

    def _some(
        self, form: Form, placed: Sequence[Sequence[Placed]], whole: Bound, sizes: Sequence[int], shapes: Shapes,
        share: tuple[int, int],
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
        for operands, have_rows in zip(placed, self.operands, strict=True):
            for operand, has_rows in zip(operands, have_rows, strict=True):
                at, rank = operand.at, operand.rank
                # Where values lie in the chain's memory is planned anew.
                first, last = at + (1 if has_rows else 0), at + rank + (0 if operand.base == form.memory else 1)
                if whole.numbers[first:last] != some[first:last]:
                    return None
                if has_rows:
                    size = operand.bytes(whole.numbers)
                    if not rank or whole.numbers[at] * some_rows != some[at] * all_rows or size % all_rows:
                        return None
                    some[at + rank + 1] = size // all_rows
        return some

    def _place(
        self, form: Form, placed: Sequence[Sequence[Placed]], whole: Bound, runs: Sequence[_Run],
        numbers: Mapping[int, array[int]], rows: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Write into ``numbers`` where values lie; the bytes of those of all rows, and of those of a part."""
        segment_of = {step: run.segment for run in runs for step in range(run.segment.first, run.segment.end)}
        most = {run.segment: max(max(its.sizes) for its in runs if its.segment == run.segment) for run in runs}
        last = {step: step for step in segment_of}
        for at, sources in enumerate(self.read):
            last.update({each[0].step: at for each in sources if not isinstance(each, int)})
        inner = {step: operands[-1] for step, operands in enumerate(placed) if operands[-1].base == form.memory}
        behind = self._behind(inner, numbers, segment_of, most)
        since = {step: step for step in inner}
        for step, (join, _) in behind.items():
            since[join] = min(since[join], step)
        shared, own = dict[int, tuple[int, int, int]](), dict[Segment, dict[int, tuple[int, int, int]]]()
        for step, operand in inner.items():
            if step in behind:
                continue
            made, read, row = segment_of[step], segment_of[last[step]], operand.bytes(whole.numbers) // rows
            if made == read and made.rows != ALL:
                own.setdefault(made, {})[step] = (row * most[made], since[step], last[step])
            else:
                # One part is at the first call of a segment when another one is at its last.
                begin = since[step] if made.rows == ALL else made.first
                shared[step] = (row * rows, begin, last[step] if read.rows == ALL else read.end - 1)
        offsets, all_bytes = _planned(shared)
        part_bytes = 0
        for needs in own.values():
            its, size = _planned(needs)
            offsets |= its
            part_bytes = max(part_bytes, size)
        are_own = {step for needs in own.values() for step in needs}
        for step, (join, further) in behind.items():
            offsets[step] = offsets[join] + further
        for at, (operands, sources) in enumerate(zip(placed, self.read, strict=True)):
            for operand, source in zip(operands, [*sources, at], strict=True):
                made_by = at if operand is operands[-1] else source[0].step if not isinstance(source, int) else None
                if made_by is None or operand.base != form.memory:
                    continue
                root = behind[made_by][0] if made_by in behind else made_by
                row_bytes = OWN if root in are_own else inner[root].bytes(whole.numbers) // rows
                for its_numbers in numbers.values():
                    its_numbers[operand.at + operand.rank] = offsets[made_by]
                    its_numbers[operand.at + operand.rank + 1] = row_bytes
        return all_bytes, part_bytes

    def _behind(
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
            further = numbers[1][its.at + its.rank] - numbers[1][whole.at + whole.rank]
            if 0 <= further < whole.bytes(numbers[1]):
                found[step] = join, further
        return found


def batch_of(
    plan: ChainPlan, calls: Sequence[Call | Copying], read: Sequence[Sequence[Source]], within: Mapping[int, int]
) -> Batch | None:  # fmt: skip
    """The batch of a chain; None where a call computes rows of several others, or there are no rows.

    ``read``: of each call where its operands come from but for the output.
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
    return Batch(sizes, tuple(varying[each] for each in sorted(varying)), tuple(found), calls, read, within)


def _runs(segment: Segment, rows: int, threads: int) -> list[_Run]:
    """How a segment is made for so many rows."""
    if segment.rows == ALL:
        return [_Run(segment, 0, 0, 0, rows)]
    each = rows // threads
    count, left = threads * -(-each // segment.rows), rows % threads
    own, large = divmod(each * threads, count)
    parts = _Run(segment, 0, count, large, own)
    return [parts, _Run(segment, rows - left, 0, 0, left)] if left else [parts]


def _planned(needs: Mapping[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    places, total = planned(list(needs.values()))
    return dict(zip(needs, places, strict=True)), total
