"""A batch in parts: all calls of a chain for some of its rows (images, say), then for the next ones.

What a call makes of few rows is still in a cache when the next call reads it. Threads that compute parts of their own
wait for one another once, and not at each kernel, and none has less to do than another because a kernel cannot be cut
evenly. On the other hand each part reads all weights, and kernels are not as fast for fewer rows.

How many rows a part has depends on the sizes, the target and the number of threads, and on nothing that is measured: a
call gives the same bits each time.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shapewright.models.lifted import View
from shapewright.torch.arguments import ALIGNMENT, Bound, Form, Shapes
from shapewright.torch.joins import Copying
from shapewright.torch.plan import Call
from shapewright.torch.steps import ChainPlan, Made

LEVEL2_TIMES = 8
"""How much larger than L2 the values of a part may be: most of them are read again soon, and L3 has others."""
LEAST_WRITTEN = 1 / 16
"""Of the bytes of all weights, what a part writes at least: with less, reading them takes a good part of the time."""
MOST_WAITING = 1 / 16
"""Of all rows, as many as threads might compute that wait for others."""

Source = int | tuple[Made, View]
"""An operand of a call: which constant of the chain's, from -1 downwards which of what varies, or what a call made and
how it is joined."""


class Parts(ctypes.Structure):
    """As native.c takes them."""

    _fields_ = (
        ("count", ctypes.c_int64), ("large", ctypes.c_int64), ("rows", ctypes.c_int64),
        ("of_large", ctypes.c_void_p), ("of_others", ctypes.c_void_p), ("row_bytes", ctypes.c_void_p),
        ("memory", ctypes.c_int64), ("bytes", ctypes.c_int64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls whose rows are independent. ``sizes``: which of a chain's sizes count rows, as the number of images and
    that of all their pixels; ``varying``: of each tensor that is new at every call, whether it has rows;
    ``operands``: the same of those of each call, the output last."""

    sizes: frozenset[int]
    varying: tuple[bool, ...]
    operands: tuple[tuple[bool, ...], ...]
    calls: Sequence[Call | Copying]

    def in_parts(
        self, form: Form, whole: Bound, sizes: Sequence[int], shapes: Shapes, base_bytes: Sequence[int], weights: int,
        threads: int,
    ) -> Bound:  # fmt: skip
        """``whole``, to be run in parts if that is worth while. ``shapes``: of what varies; ``base_bytes``: of each
        base, 0 where it has no rows; ``weights``: the bytes of all constants."""
        # What all of them are multiples of can be divided.
        rows = math.gcd(*[sizes[each] for each in self.sizes])
        cache = LEVEL2_TIMES * min(call.l2_bytes for call in self.calls if isinstance(call, Call))
        fit = cache * rows // max(whole.bytes, 1)
        # Sizes of decoders are new at each word: what is written is counted where it may matter.
        if number_of_parts(rows, threads, fit, 1) < 2 or any(size % rows for size in base_bytes):
            return whole
        least = math.ceil(LEAST_WRITTEN * weights * rows / max(form.written(whole.numbers), 1))
        count = number_of_parts(rows, threads, fit, least)
        if count < 2:
            return whole
        each, large = divmod(rows, count)
        others = self._some(form, whole, sizes, shapes, (each, rows))
        larger = self._some(form, whole, sizes, shapes, (each + 1, rows)) if large else others
        if others is None or larger is None:
            return whole
        size = -(-max(others.bytes, larger.bytes) // ALIGNMENT) * ALIGNMENT
        row_bytes = array("q", [its // rows for its in base_bytes])
        places = [numbers.buffer_info()[0] for numbers in (larger.numbers, others.numbers, row_bytes)]
        parts = Parts(count, large, each, *places, form.memory, size)
        kept = [*whole.kept, others, larger, row_bytes]
        return replace(whole, bytes=size * threads, parts=parts, kept=kept)

    def _some(
        self, form: Form, whole: Bound, sizes: Sequence[int], shapes: Shapes, share: tuple[int, int]
    ) -> Bound | None:  # fmt: skip
        """The calls for a share of the rows, so many of so many; None if they are not those for all of them but for the
        number of rows.

        Values lie row by row and are seen as a whole: the first k of n rows of any value are the same share of it,
        however many axes it is seen with.
        """
        some_rows, all_rows = share
        given = [size * some_rows // all_rows if at in self.sizes else size for at, size in enumerate(sizes)]
        viewed = [
            [shape[0] * some_rows // all_rows, *shape[1:]] if has_rows and shape else shape
            for shape, has_rows in zip(shapes, self.varying, strict=True)
        ]
        some = form.bound(given, viewed)
        for operands, have_rows in zip(form.operands(), self.operands, strict=True):
            for (at, rank, is_placed), has_rows in zip(operands, have_rows, strict=True):
                # Where values lie in the chain's memory is planned anew.
                first, last = at + (1 if has_rows else 0), at + rank + (0 if is_placed else 1)
                if whole.numbers[first:last] != some.numbers[first:last]:
                    return None
                if has_rows and (not rank or whole.numbers[at] * some_rows != some.numbers[at] * all_rows):
                    return None
        return some


def batch_of(plan: ChainPlan, calls: Sequence[Call | Copying], read: Sequence[Sequence[Source]]) -> Batch | None:
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
    return Batch(sizes, tuple(varying[each] for each in sorted(varying)), tuple(found), calls)


def number_of_parts(rows: int, threads: int, fit: int, least: int) -> int:
    """Into how many parts rows are to be divided, about as many in each; 1: they are computed at once. ``fit``: as many
    as caches hold the values of; ``least``: as many as are worth reading all weights for."""
    # As many for each thread; where rows are left that are not as many as threads, some wait for the others.
    count = min(-(-rows // (max(fit, 1) * threads)), rows // max(least, 1) // threads) * threads
    waiting = -rows % threads
    return count if count > 1 and waiting <= MOST_WAITING * rows else 1
