"""Operands rearranged at each call, so that the register tile reads contiguous, aligned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dtypes import constant, vector_type
from tuner.schedule.vector.memory import workspace

if TYPE_CHECKING:
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.panels import PackedSlice
    from tuner.schedule.product.rows import PackedRows


@dataclass(frozen=True)
class Place:
    """Of a panel that is packed ``to`` memory at the call, vector ``v`` of the columns and the rows from ``row`` on."""

    panel: Panel
    to: PackedSlice
    v: TirExpr
    row: TirExpr


def padded(context: EmitContext, length: TirExpr) -> TirExpr:
    """``length`` rounded up to whole vectors."""
    lanes = context.vectors.lanes
    return tirx.floordiv(length + i64(lanes - 1), i64(lanes)) * i64(lanes)


def pack_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Fill ``to`` with the panel's slice of the right operand at these steps of k."""
    if context.right.lies_along_n:
        _copy(context, panel, to, chunk)
    else:
        _transpose(context, panel, to, chunk)


def _copy(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    lanes = context.vectors.lanes
    with I.serial(i64(0), chunk.length) as step:
        for v in range(panel.vectors):
            buffer, at = context.right.step(context, chunk.first + step)
            value = context.vectors.load(buffer, at, panel.column + i64(v * lanes), panel.limit)
            value = context.words.element(value, context.words.right)
            place = [to.index, chunk.first - to.first + step, context.vectors.ramp(i64(v * lanes))]
            I.buffer_store(to.buffer, value, place)


def _transpose(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Squares of lanes x lanes elements, turned over in registers; the last one reads no further than k."""
    lanes = context.vectors.lanes
    whole = tirx.floordiv(chunk.length, i64(lanes))
    with I.serial(i64(0), whole) as square:
        _squares(context, panel, to, chunk, square * i64(lanes), None)
    with I.If(whole * i64(lanes) < chunk.length), I.Then():
        _squares(context, panel, to, chunk, whole * i64(lanes), chunk.first + chunk.length)


def _squares(
    context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk, step: TirExpr, limit: TirExpr | None
) -> None:
    def elements(buffer: TirExpr, outer: tuple[TirExpr, ...]) -> TirExpr:
        value = context.vectors.load(buffer, outer, chunk.first + step, limit)
        return context.words.element(value, context.words.right)

    with I.serial(i64(0), i64(panel.vectors)) as v:
        transpose_tile(context, Place(panel, to, v, chunk.first - to.first + step), elements)


def transpose_tile(
    context: EmitContext, place: Place, words: Callable[[TirExpr, tuple[TirExpr, ...]], TirExpr]
) -> None:
    """Fills as many rows of a panel there as a vector has lanes. ``words``: a vector along k of one column, which
    ``Right.step`` has found; 32 bits in each lane."""
    panel, width, lanes, rows = place.panel, context.words.width, context.vectors.lanes, []
    for lane in range(lanes):
        column = panel.column + place.v * i64(lanes) + i64(lane)
        if panel.limit is not None:
            # Surplus columns hold copies of the last valid one; they are computed and not stored.
            column = tirx.min(column, panel.limit - i64(1))
        rows.append(I.Bind(words(*context.right.step(context, column))))
    packed = vector_type(context.words.atom.element, width)
    for lane, turned in enumerate(context.vectors.transposed(rows)):
        value = turned if str(turned.ty.dtype) == packed else tirx.reinterpret(packed, turned)
        at = [place.to.index, place.row + i64(lane), tirx.Ramp(place.v * i64(width), i64(1), width)]
        I.buffer_store(place.to.buffer, value, at)


@contextmanager
def packed_panels(context: EmitContext, panels: TirExpr, steps: TirExpr) -> Iterator[TirExpr]:
    """Room for so many panels of so many steps of k."""
    atom = context.words.atom
    with workspace((panels, padded(context, steps), i64(context.nr * atom.group)), atom.element) as buffer:
        yield buffer


@contextmanager
def packed_rows(context: EmitContext, rows: int, steps: TirExpr) -> Iterator[TirExpr]:
    """Room for so many rows of the left operand. Rows start a cache line and more apart from a power of two, so that
    the rows of a tile do not fall on the same lines of a cache."""
    shape = i64(rows), padded(context, steps) + i64(context.vectors.lanes)
    with workspace(shape, context.words.register) as buffer:
        yield buffer


def pack_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """Copy ``count`` rows at these steps of k, as words in registers are."""
    lanes, words, group = context.vectors.lanes, context.words, context.words.atom.group
    vectors = tirx.floordiv(chunk.length, i64(lanes))
    if context.ragged_k is not None:
        # The last word of k is not read as a whole: elements of the next row times zero are NaN if those are infinite.
        elements = context.ragged_k - chunk.first * i64(group)
        vectors = I.Bind(tirx.min(vectors, tirx.floordiv(elements, i64(lanes * group))))
    whole = vectors * i64(lanes)
    with I.serial(i64(0), count) as r:
        buffer, place = context.left.row(context, rows.row + r)
        with I.serial(i64(0), vectors) as v:
            value = words.left_words(buffer, place, chunk.first + v * i64(lanes))
            I.buffer_store(rows.buffer, value, [r, context.vectors.ramp(v * i64(lanes))])
        with I.serial(whole, chunk.length) as p:
            I.buffer_store(rows.buffer, words.left_word(buffer, place, chunk.first + p, context.ragged_k), [r, p])


# -- whole multiplications of a matrix unit ----------------------------------------------------------------------------
def fill_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """Zeros behind the last words of ``count`` packed rows."""
    for first, end in _surplus(context, chunk):
        word = word_elements(context, rows.buffer)
        zero = constant(0, str(rows.buffer.dtype), 1)
        with I.serial(i64(0), count) as r, I.serial(first * i64(word), end * i64(word)) as p:
            I.buffer_store(rows.buffer, zero, [r, p])


def fill_panel(context: EmitContext, to: PackedSlice, chunk: Chunk) -> None:
    """Zeros behind the last steps of a packed panel."""
    for first, end in _surplus(context, chunk):
        before, width = chunk.first - to.first, context.nr * context.words.atom.group
        zero = constant(0, str(to.buffer.dtype), 1)
        with I.serial(first, end) as step, I.serial(i64(0), i64(width)) as column:
            I.buffer_store(to.buffer, zero, [to.index, before + step, column])


def word_elements(context: EmitContext, buffer: TirExpr) -> int:
    """Elements of a buffer of packed rows that are a word: that, or what it is made of."""
    return 1 if str(buffer.dtype) == context.words.register else context.words.atom.group


def _surplus(context: EmitContext, chunk: Chunk) -> list[tuple[TirExpr, TirExpr]]:
    """The words that the last multiplication of a chunk has beyond its length, if it may have any."""
    steps, length = context.words.atom.steps, chunk.length
    if steps == 1 or (isinstance(length, tirx.IntImm) and int(length) % steps == 0):
        return []
    return [(length, tirx.floordiv(length + i64(steps - 1), i64(steps)) * i64(steps))]
