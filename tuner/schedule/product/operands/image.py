"""Rows of the left operand that are windows of an image: what the image is, and its padded copy that they are read in.

The copy has the rows of the image that a block of rows of the product needs, each once, where gathered rows hold an
element once for each window that it is in. A tile adds where its rows start to where a step lies in a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Axis, Expr, Read
from tuner.program.language.workload import Workload
from tuner.schedule.access import Dim, dim_of
from tuner.schedule.loops.shares import number_of
from tuner.schedule.product.context import Chunk, EmitContext, Run, Values
from tuner.schedule.product.match.factors import Part
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_vector
from tuner.schedule.product.readers import PackedRows
from tuner.schedule.product.tile import Tile
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.memory import workspace


@dataclass(frozen=True)
class Image:
    """``read`` at ``rows`` of ``columns`` of ``channel``: its dims, outermost first."""

    read: Read
    rows: tuple[Dim, ...]
    columns: Dim
    channel: str

    @property
    def run(self) -> tuple[str, ...]:
        """The reduced axes along which a window is contiguous in memory, innermost last."""
        inner = self.columns.window
        return (inner, self.channel) if inner is not None and self.columns.dilation == 1 else (self.channel,)


def image_of(
    workload: Workload, factors: Sequence[Expr], parts: Mapping[str, Part], m: tuple[str, ...], k: tuple[str, ...]
) -> Image | None:  # fmt: skip
    """What the factors read, if it is one tensor of which a row has a window with channels innermost. Windows next to
    each other touch: a copy would have what lies between them, too."""
    factor = factors[0] if len(factors) == 1 else None
    if not isinstance(factor, Read) or len(factor.indices) < 2:
        return None
    *others, last = factor.indices
    if not isinstance(last, Axis) or workload.tensors[factor.tensor].dims[-1] != workload.sizes[last.name]:
        return None
    dims = tuple(dim for index in others if (dim := dim_of(index, m, k)) is not None)
    windows = tuple(dim.window for dim in dims if dim.window is not None)
    is_whole = len(dims) == len(others) and tuple(dim.place for dim in dims) == m and (*windows, last.name) == k
    is_dense = windows and all(dim.step <= reach_of(dim, parts) + 1 for dim in dims)
    return Image(factor, dims[:-1], dims[-1], last.name) if is_whole and is_dense else None


# -- windows ----------------------------------------------------------------------------------------------------------
def reach_of(dim: Dim, parts: Mapping[str, Part]) -> int:
    """How far a window's last element is behind its first one; -1 where that is not known ahead."""
    size = 1 if dim.window is None else parts[dim.window].extent.constant
    return dim.dilation * (size - 1) if size else -1


@contextmanager
def runs_of(chunk: Chunk, size: TirExpr) -> Iterator[tuple[TirExpr, TirExpr, TirExpr, TirExpr]]:
    """The steps of a chunk as runs of ``size`` of them, cut where the chunk begins and ends: the run, the step that it
    begins at if it is whole, the first one of it in the chunk, and how many there are."""
    end = chunk.first + chunk.length
    with I.serial(tirx.truncdiv(chunk.first, size), tirx.truncdiv(end + size - i64(1), size)) as run:
        begin = run * size
        if chunk.is_whole:
            first, length = begin, size
        else:
            # Bindings and not stack slots: where TVM proves that a chunk is one run, it removes slots that are read.
            first = I.Bind(tirx.max(begin, chunk.first))
            length = I.Bind(tirx.min(begin + size, end) - first)
        yield run, begin, first, length


def behind(dims: Sequence[Dim], values: Values) -> Values:
    """How many indices behind the first one of its window a step lies, by place."""
    return {dim.place: i64(0) if dim.window is None else values[dim.window] * i64(dim.dilation) for dim in dims}


# -- the copy ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ImageRows(PackedRows):
    """``buffer``: the copy, of one dim; ``starts``: where in it row ``row`` and those behind begin; ``pitch``: elements
    between rows of the copy."""

    starts: TirExpr
    pitch: TirExpr

    def places(self, tile: Tile) -> list[TirExpr]:
        return [bound(self.starts[index]) for index in super().places(tile)]

    @contextmanager
    def runs(self, tile: Tile) -> Iterator[Run]:
        """Run after run of what is contiguous in a window."""
        context, chunk = tile.context, tile.chunk
        parts, image, steps = context.parts, context.form.image, context.form.k
        assert image is not None
        size = bound_unless_known(tirx.max(math.prod(map(parts.size, image.run), start=i64(1)), i64(1)))
        with runs_of(chunk, size) as (run, begin, first, length):
            values = parts.decomposed(steps[: len(steps) - len(image.run)], run)
            place = number_of(behind(image.rows, values), _lines(context, image)) * self.pitch
            if len(image.run) == 1 and image.columns.window is not None:
                shift = values[image.columns.window] * i64(image.columns.dilation) * parts.size(image.channel)
                place = place + shift
            # Steps count from the chunk's first one.
            yield Run(first - chunk.first, length, bound(place + chunk.first - begin))

    def in_run(self, places: list[TirExpr], run: Run) -> list[TirExpr]:
        return [bound(start + run.place) for start in places]

    def word(self, tile: Tile, place: TirExpr, step: TirExpr) -> TirExpr:
        return self.buffer[place + step]


@contextmanager
def image_rows(context: EmitContext, first: TirExpr, count: TirExpr) -> Iterator[ImageRows]:
    """The rows of the left operand from ``first`` on, ``count`` of them, in a copy of their part of the image."""
    copy, m = _ImageCopy(context), context.form.m
    start = copy.line(context.parts.decomposed(m, first))
    last = copy.line(context.parts.decomposed(m, tirx.max(first + count - i64(1), first)))
    lines = bound_unless_known(last - start + copy.height)
    # Neither is empty, whatever the extents are.
    sizes = I.Bind(lines * copy.pitch + i64(context.vectors.lanes)), I.Bind(count + i64(1))
    with workspace(sizes[:1]) as packed, workspace(sizes[1:], "int64") as starts:
        copy.fill(packed, start, lines)
        with context.parts.runs(m, first, count) as (values, begin, end, shift):
            line = bound_unless_known((copy.line(values) - start) * copy.pitch)
            with I.serial(begin, end) as column:
                I.buffer_store(starts, line + column * (i64(copy.image.columns.step) * copy.channels), [column + shift])
        yield ImageRows(packed, first, starts, copy.pitch)


def _extent(context: EmitContext, dim: Dim) -> TirExpr:
    """How many indices of a dim windows touch, from the first one to the last."""
    reach = (context.parts.size(dim.place) - i64(1)) * i64(dim.step) + i64(1)
    return reach if dim.window is None else reach + (context.parts.size(dim.window) - i64(1)) * i64(dim.dilation)


def _lines(context: EmitContext, image: Image) -> Values:
    """The extents of the dims that the copy has lines of, by place."""
    return {dim.place: _extent(context, dim) for dim in image.rows}


class _ImageCopy:
    """How an image lies in its copy: lines of padded columns, one for each value of the outer dims."""

    def __init__(self, context: EmitContext) -> None:
        image, lanes = context.form.image, i64(context.vectors.lanes)
        assert image is not None
        self.context, self.image, self.extents = context, image, _lines(context, image)
        self.channels = context.parts.size(image.channel)
        width = bound_unless_known(_extent(context, image.columns) * self.channels)
        self.pitch = bound_unless_known(tirx.floordiv(width + lanes - i64(1), lanes) * lanes)
        last = {dim.window: context.parts.size(dim.window) - i64(1) for dim in image.rows if dim.window is not None}
        self.height = bound_unless_known(number_of(behind(image.rows, last), self.extents) + i64(1))

    def line(self, values: Values) -> TirExpr:
        """The line where a window begins at these values of the parts of m."""
        places = {dim.place: values[dim.place] * i64(dim.step) for dim in self.image.rows}
        return bound_unless_known(number_of(places, self.extents))

    def fill(self, packed: TirExpr, start: TirExpr, lines: TirExpr) -> None:
        """So many lines from ``start`` on."""
        context, tensor, lanes = self.context, self.image.read.tensor, self.context.vectors.lanes
        sizes, source = context.parts.sizes_of(tensor), context.buffers[tensor]
        length, align = I.Bind(sizes[-2] * sizes[-1]), DTYPES[context.task.workload.tensors[tensor].dtype].bytes
        flat = I.decl_buffer([*sizes[:-2], length], source.dtype, data=source.data, align=align)
        before = i64(self.image.columns.first) * self.channels
        with I.serial(i64(0), lines) as line:
            at = self._outer(start + line)
            end = end_inside(at, sizes[:-2], length)
            with I.serial(i64(0), tirx.floordiv(self.pitch, i64(lanes))) as v:
                element = bound_unless_known(v * i64(lanes) + before)
                mask = lanes_inside(element, end, lanes)
                value = padded_vector(context, tensor, flat, [*at, context.vectors.ramp(element)], mask)
                I.buffer_store(packed, value, [context.vectors.ramp(line * self.pitch + v * i64(lanes))])

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        indices: list[TirExpr] = []
        for number, dim in reversed(list(enumerate(self.image.rows))):
            value = line
            if number:
                extent = tirx.max(self.extents[dim.place], i64(1))
                value, line = (bound_unless_known(part(line, extent)) for part in (tirx.truncmod, tirx.truncdiv))
            indices.append(bound_unless_known(value + i64(dim.first)))
        return indices[::-1]
