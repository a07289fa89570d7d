"""Rows of the left operand that are windows of an image: what the image is, and its padded copy that they are read in.

The copy has the rows of the image that a block of rows of the product needs, each once, where gathered rows hold an
element once for each window that it is in. A tile adds where its rows start to where a step lies in a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.program.dtypes import DTYPES
from tuner.program.expr import Axis, Expr, Read
from tuner.program.program import index_dim
from tuner.program.workload import Workload
from tuner.schedule.product.context import EmitContext, Run, Values
from tuner.schedule.product.match.parts import Part
from tuner.schedule.product.operands.padded import end_inside, lanes_inside, padded_vector, runs_of_chunk
from tuner.schedule.product.readers import PackedRows
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.memory import workspace

if TYPE_CHECKING:
    from tuner.schedule.product.tile import Tile


@dataclass(frozen=True)
class Dim:
    """An index ``step * place + dilation * window + first``; ``window``: None if there is none."""

    place: str
    step: int
    window: str | None
    dilation: int
    first: int


@dataclass(frozen=True)
class Image:
    """``read`` at ``rows`` of ``columns`` of ``channel``: its dims, outermost first."""

    read: Read
    rows: tuple[Dim, ...]
    columns: Dim
    channel: str

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.rows, self.columns)

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
    found = [dim_of(index, m, k) for index in others]
    dims = tuple(dim for dim in found if dim is not None)
    windows = tuple(dim.window for dim in dims if dim.window is not None)
    is_whole = len(dims) == len(found) and tuple(dim.place for dim in dims) == m and (*windows, last.name) == k
    is_dense = is_whole and windows and all(dim.step <= _reach(dim, parts) for dim in dims)
    return Image(factor, dims[:-1], dims[-1], last.name) if is_dense else None


def _reach(dim: Dim, parts: Mapping[str, Part]) -> int:
    """How many indices a window goes over from its first one to its last; 0 where that is not known ahead."""
    size = 1 if dim.window is None else parts[dim.window].extent.constant
    return 0 if size is None else dim.dilation * (size - 1) + 1


def dim_of(index: Expr, m: Sequence[str], k: Sequence[str]) -> Dim | None:
    """An index as a place among ``m`` and a step of a window among ``k``; None for another."""
    dim = index_dim(index)
    if dim is None:
        return None
    place, step, window, dilation, first = "", 0, None, 1, 0
    for monomial, coefficient in dim.terms:
        name = monomial[0] if len(monomial) == 1 else None
        if monomial == ():
            first = coefficient
        elif isinstance(name, str) and name in m and not place and coefficient > 0:
            place, step = name, coefficient
        elif isinstance(name, str) and name in k and window is None and coefficient > 0:
            window, dilation = name, coefficient
        else:
            return None
    return Dim(place, step, window, dilation, first) if place else None


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
        outer = steps[: len(steps) - len(image.run)]
        size: TirExpr = i64(1)
        for name in image.run:
            size = size * parts.size(name)
        size = bound_unless_known(tirx.max(size, i64(1)))
        with runs_of_chunk(chunk, size) as (run, begin, first, length):
            values = parts.decomposed(outer, run)
            place = window_line(context, image, values) * self.pitch
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
    copy = _Copy(context)
    start = copy.line(context.parts.decomposed(context.form.m, first))
    last = copy.line(context.parts.decomposed(context.form.m, tirx.max(first + count - i64(1), first)))
    lines = bound_unless_known(last - start + copy.height)
    # Neither is empty, whatever the extents are.
    sizes = I.Bind(lines * copy.pitch + i64(context.vectors.lanes)), I.Bind(count + i64(1))
    with workspace(sizes[:1]) as packed, workspace(sizes[1:], "int64") as starts:
        copy.fill(packed, start, lines)
        copy.starts(starts, start, first, count)
        yield ImageRows(packed, first, starts, copy.pitch)


class _Copy:
    """How an image lies in its copy: lines of padded columns, one for each value of the outer dims."""

    def __init__(self, context: EmitContext) -> None:
        image = context.form.image
        assert image is not None
        self.context, self.image = context, image
        self.channels = context.parts.size(image.channel)
        self.width = bound_unless_known(extent_of(context, image.columns) * self.channels)
        lanes = i64(context.vectors.lanes)
        self.pitch = bound_unless_known(tirx.floordiv(self.width + lanes - i64(1), lanes) * lanes)
        windows: Values = {
            dim.window: context.parts.size(dim.window) - i64(1) for dim in image.rows if dim.window is not None
        }
        self.height = bound_unless_known(window_line(context, image, windows) + i64(1))

    def line(self, values: Values) -> TirExpr:
        """The line where a window begins at these values of the parts of m."""
        places = [values[dim.place] * i64(dim.step) for dim in self.image.rows]
        return bound_unless_known(_flattened(self.context, self.image, places))

    def starts(self, starts: TirExpr, start: TirExpr, first: TirExpr, count: TirExpr) -> None:
        columns = self.image.columns
        with self.context.parts.runs(self.context.form.m, first, count) as (values, begin, end, shift):
            line = bound_unless_known((self.line(values) - start) * self.pitch)
            with I.serial(begin, end) as column:
                I.buffer_store(starts, line + column * (i64(columns.step) * self.channels), [column + shift])

    def fill(self, packed: TirExpr, start: TirExpr, lines: TirExpr) -> None:
        context, read, lanes = self.context, self.image.read, self.context.vectors.lanes
        sizes, source = context.parts.sizes_of(read.tensor), context.buffers[read.tensor]
        dtype = context.task.workload.tensors[read.tensor].dtype
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
                value = padded_vector(context, read.tensor, flat, [*at, context.vectors.ramp(element)], mask)
                I.buffer_store(packed, value, [context.vectors.ramp(line * self.pitch + v * i64(lanes))])

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        """The outer indices of the tensor at a line."""
        indices: list[TirExpr] = []
        for position, dim in reversed(list(enumerate(self.image.rows))):
            if position == 0:
                value = line
            else:
                extent = tirx.max(extent_of(self.context, dim), i64(1))
                value, line = (
                    bound_unless_known(tirx.truncmod(line, extent)),
                    bound_unless_known(tirx.truncdiv(line, extent)),
                )
            indices.append(bound_unless_known(value + i64(dim.first)))
        return indices[::-1]


def extent_of(context: EmitContext, dim: Dim) -> TirExpr:
    """How many indices of a dim windows touch, from the first one to the last."""
    reach = (context.parts.size(dim.place) - i64(1)) * i64(dim.step) + i64(1)
    return reach if dim.window is None else reach + (context.parts.size(dim.window) - i64(1)) * i64(dim.dilation)


def window_line(context: EmitContext, image: Image, values: Values) -> TirExpr:
    """How many lines below the first one of its window a step lies."""
    below = [values[dim.window] * i64(dim.dilation) if dim.window is not None else i64(0) for dim in image.rows]
    return _flattened(context, image, below)


def _flattened(context: EmitContext, image: Image, indices: Sequence[TirExpr]) -> TirExpr:
    flat: TirExpr = i64(0)
    for dim, index in zip(image.rows, indices, strict=True):
        flat = flat * extent_of(context, dim) + index
    return flat
