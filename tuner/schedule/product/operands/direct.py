"""Rows of the left operand that are read in a padded copy of the image they are windows of.

The copy has the rows of the image that a block of rows of the product needs, each once, where gathered rows hold an
element once for each window that it is in. A tile adds where its rows start to where a step lies in a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.program.dtypes import DTYPES
from tuner.schedule.product.frame import Rows
from tuner.schedule.product.operands.frame import FormFrame, Values
from tuner.schedule.product.operands.image import Dim, Image
from tuner.schedule.product.operands.padded import end_inside, lanes_inside, padded_vector, runs_of_chunk
from tuner.schedule.product.tile import Tile
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.memory import workspace


@dataclass(frozen=True)
class ImageRows(Rows):
    """``packed``: the copy, of one dim; ``starts``: where in it row ``row`` and those behind begin; ``pitch``: elements
    between rows of the copy."""

    starts: TirExpr = None
    pitch: TirExpr = None


@contextmanager
def image_rows(frame: FormFrame, first: TirExpr, count: TirExpr) -> Iterator[ImageRows]:
    """The rows of the left operand from ``first`` on, ``count`` of them, in a copy of their part of the image."""
    copy = _Copy(frame)
    start = copy.line(frame.decomposed(frame.contraction.m, first))
    last = copy.line(frame.decomposed(frame.contraction.m, tirx.max(first + count - i64(1), first)))
    lines = bound_unless_known(last - start + copy.height)
    # Neither is empty, whatever the extents are.
    sizes = I.Bind(lines * copy.pitch + i64(frame.vectors.lanes)), I.Bind(count + i64(1))
    with workspace(sizes[:1]) as packed, workspace(sizes[1:], "int64") as starts:
        copy.fill(packed, start, lines)
        copy.starts(starts, start, first, count)
        yield ImageRows(packed, first, starts, copy.pitch)


class _Copy:
    """How an image lies in its copy: lines of padded columns, one for each value of the outer dims."""

    def __init__(self, frame: FormFrame) -> None:
        image = frame.contraction.image
        assert image is not None
        self.frame, self.image = frame, image
        self.channels = frame.size(image.channel)
        self.width = bound_unless_known(extent_of(frame, image.columns) * self.channels)
        lanes = i64(frame.vectors.lanes)
        self.pitch = bound_unless_known(tirx.floordiv(self.width + lanes - i64(1), lanes) * lanes)
        windows: Values = {dim.window: frame.size(dim.window) - i64(1) for dim in image.rows if dim.window is not None}
        self.height = bound_unless_known(window_line(frame, image, windows) + i64(1))

    def line(self, values: Values) -> TirExpr:
        """The line where a window begins at these values of the parts of m."""
        places = [values[dim.place] * i64(dim.step) for dim in self.image.rows]
        return bound_unless_known(_flattened(self.frame, self.image, places))

    def starts(self, starts: TirExpr, start: TirExpr, first: TirExpr, count: TirExpr) -> None:
        columns = self.image.columns
        with self.frame.runs(self.frame.contraction.m, first, count) as (values, begin, end, shift):
            line = bound_unless_known((self.line(values) - start) * self.pitch)
            with I.serial(begin, end) as column:
                I.buffer_store(starts, line + column * (i64(columns.step) * self.channels), [column + shift])

    def fill(self, packed: TirExpr, start: TirExpr, lines: TirExpr) -> None:
        frame, read, lanes = self.frame, self.image.read, self.frame.vectors.lanes
        sizes, source = frame.sizes_of(read.tensor), frame.buffers[read.tensor]
        dtype = frame.task.workload.tensors[read.tensor].dtype
        length = I.Bind(sizes[-2] * sizes[-1])
        shape = [*sizes[:-2], length]
        flat = I.decl_buffer(shape, source.dtype, data=source.data, align=DTYPES[dtype].bytes)
        before = i64(self.image.columns.first) * self.channels
        with I.serial(i64(0), lines) as line:
            at = self._outer(start + line)
            end = end_inside(at, sizes[:-2], length)
            with I.serial(i64(0), tirx.floordiv(self.pitch, i64(lanes))) as v:
                element = bound_unless_known(v * i64(lanes) + before)
                mask = lanes_inside(element, end, lanes)
                value = padded_vector(frame, read.tensor, flat, [*at, frame.vectors.ramp(element)], mask)
                I.buffer_store(packed, value, [frame.vectors.ramp(line * self.pitch + v * i64(lanes))])

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        """The outer indices of the tensor at a line."""
        indices: list[TirExpr] = []
        for position, dim in reversed(list(enumerate(self.image.rows))):
            if position == 0:
                value = line
            else:
                extent = tirx.max(extent_of(self.frame, dim), i64(1))
                value, line = (
                    bound_unless_known(tirx.truncmod(line, extent)),
                    bound_unless_known(tirx.truncdiv(line, extent)),
                )
            indices.append(bound_unless_known(value + i64(dim.first)))
        return indices[::-1]


def extent_of(frame: FormFrame, dim: Dim) -> TirExpr:
    """How many indices of a dim windows touch, from the first one to the last."""
    reach = (frame.size(dim.place) - i64(1)) * i64(dim.step) + i64(1)
    return reach if dim.window is None else reach + (frame.size(dim.window) - i64(1)) * i64(dim.dilation)


def window_line(frame: FormFrame, image: Image, values: Values) -> TirExpr:
    """How many lines below the first one of its window a step lies."""
    below = [values[dim.window] * i64(dim.dilation) if dim.window is not None else i64(0) for dim in image.rows]
    return _flattened(frame, image, below)


def _flattened(frame: FormFrame, image: Image, indices: Sequence[TirExpr]) -> TirExpr:
    flat: TirExpr = i64(0)
    for dim, index in zip(image.rows, indices, strict=True):
        flat = flat * extent_of(frame, dim) + index
    return flat


class ImageTile(Tile):
    """A tile whose rows are windows of an image."""

    rows: ImageRows

    def _row_indices(self) -> list[TirExpr]:
        return [bound(self.rows.starts[index]) for index in super()._row_indices()]

    def _turns_of_chunk(self, index: list[TirExpr], ordinal: TirExpr) -> None:
        """Run after run of what is contiguous in a window."""
        frame, chunk = self.frame, self.chunk
        assert isinstance(frame, FormFrame) and frame.contraction.image is not None
        image, steps = frame.contraction.image, frame.contraction.k
        outer = steps[: len(steps) - len(image.run)]
        size: TirExpr = i64(1)
        for name in image.run:
            size = size * frame.size(name)
        size = bound_unless_known(tirx.max(size, i64(1)))
        with runs_of_chunk(chunk, size) as (run, begin, first, length):
            values = frame.decomposed(outer, run)
            place = window_line(frame, image, values) * self.rows.pitch
            if len(image.run) == 1 and image.columns.window is not None:
                shift = values[image.columns.window] * i64(image.columns.dilation) * frame.size(image.channel)
                place = place + shift
            # Steps count from the chunk's first one.
            place = bound(place + chunk.first - begin)
            self._turns([bound(start + place) for start in index], first - chunk.first, length, ordinal)

    def _left(self, row: TirExpr, step: TirExpr) -> TirExpr:
        assert self.rows.packed is not None
        return self.rows.packed[row + step]
