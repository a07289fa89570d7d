"""Operands rearranged at each call, so that the register tile reads contiguous, aligned memory.

Rows and panels are filled up with zeros to whole multiplications of a matrix unit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dtypes import constant, vector_type
from tuner.schedule.vector.memory import Vectors, workspace

if TYPE_CHECKING:
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.panels import PackedSlice
    from tuner.schedule.product.rows import PackedRows


def _whole(length: TirExpr, of: int) -> TirExpr:
    """``length`` rounded up to a multiple of ``of``."""
    return tirx.floordiv(length + i64(of - 1), i64(of)) * i64(of)


# -- panels of the right operand --------------------------------------------------------------------------------------
def room_for_panels(context: EmitContext, panels: TirExpr, steps: TirExpr) -> AbstractContextManager[TirExpr]:
    """Room for so many panels of so many steps of k."""
    atom = context.words.atom
    shape = panels, _whole(steps, context.vectors.lanes), i64(context.nr * atom.group)
    return workspace(shape, atom.element)


def pack_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Fill ``to`` with the panel's slice of the right operand at these steps of k."""
    write = _copy if context.right.lies_along_n else _transpose
    write(context, panel, to, chunk)


def _copy(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Of [k, n]: a vector of columns at each of the neighbours of a word, side by side."""
    group, lanes = context.words.atom.group, context.vectors.lanes
    with I.serial(i64(0), chunk.length) as step:
        for v in range(panel.vectors):
            neighbours = []
            for j in range(group):
                buffer, at = context.right.step(context, (chunk.first + step) * i64(group) + i64(j))
                value = context.vectors.load(buffer, at, panel.column + i64(v * lanes), panel.limit)
                neighbours.append(value if group == 1 else I.Bind(value))
            store_columns(context, to, chunk.first - to.first + step, i64(v), context.words.of_columns(neighbours))


def store_columns(context: EmitContext, to: PackedSlice, row: TirExpr, v: TirExpr, value: TirExpr) -> None:
    """``value`` as vector ``v`` of a row of a packed panel."""
    width = context.words.width
    I.buffer_store(to.buffer, value, [to.index, row, tirx.Ramp(v * i64(width), i64(1), width)])


def _transpose(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Of [n, k]: squares of lanes x lanes words, turned over in registers."""
    lanes = context.vectors.lanes
    if context.words.atom.group > 1:
        # Words past the chunk are those of the next one, or zero past k.
        with I.serial(i64(0), tirx.floordiv(chunk.length + i64(lanes - 1), i64(lanes))) as square:
            _squares(context, panel, to, chunk, I.Bind(square * i64(lanes)), context.depth)
        return
    whole = tirx.floordiv(chunk.length, i64(lanes))
    with I.serial(i64(0), whole) as square:
        _squares(context, panel, to, chunk, square * i64(lanes), None)
    with I.If(whole * i64(lanes) < chunk.length), I.Then():
        _squares(context, panel, to, chunk, whole * i64(lanes), chunk.first + chunk.length)


def _squares(
    context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk, step: TirExpr, limit: TirExpr | None
) -> None:
    """The squares of all columns from ``step`` of the chunk on; elements at and past ``limit`` are not touched."""
    words, lanes, rows = context.words, context.vectors.lanes, chunk.first - to.first + step
    packed = vector_type(words.atom.element, words.width)
    first = (chunk.first + step) * i64(words.atom.group)
    with I.serial(i64(0), i64(panel.vectors)) as v:
        square = []
        for lane in range(lanes):
            column = panel.column + v * i64(lanes) + i64(lane)
            if panel.limit is not None:
                # Surplus columns hold copies of the last valid one; they are computed and not stored.
                column = tirx.min(column, panel.limit - i64(1))
            buffer, at = context.right.step(context, column)
            square.append(I.Bind(words.of_column(Vectors(words.width).load(buffer, at, first, limit))))
        for lane, turned in enumerate(context.vectors.transposed(square)):
            value = turned if str(turned.ty.dtype) == packed else tirx.reinterpret(packed, turned)
            store_columns(context, to, rows + i64(lane), v, value)


def fill_panel(context: EmitContext, to: PackedSlice, chunk: Chunk) -> None:
    """Zeros behind the last steps of a packed panel."""
    for first, end in _surplus(context, chunk):
        before, width = chunk.first - to.first, context.nr * context.words.atom.group
        zero = constant(0, str(to.buffer.dtype), 1)
        with I.serial(first, end) as step, I.serial(i64(0), i64(width)) as column:
            I.buffer_store(to.buffer, zero, [to.index, before + step, column])


# -- rows of the left operand -----------------------------------------------------------------------------------------
def room_for_rows(
    context: EmitContext, rows: int, steps: TirExpr, *, as_elements: bool = False
) -> AbstractContextManager[TirExpr]:
    """Room for so many rows of so many words, or of what these are made of. Rows start a cache line and more apart from
    a power of two, so that the rows of a tile do not fall on the same lines of a cache."""
    atom, lanes = context.words.atom, context.vectors.lanes
    word, dtype = (atom.group, atom.element) if as_elements else (1, context.words.register)
    return workspace((i64(rows), (_whole(steps, lanes) + i64(lanes)) * i64(word)), dtype)


def pack_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """Copy ``count`` rows at these steps of k, as words in registers are."""
    lanes, words, group = context.vectors.lanes, context.words, context.words.atom.group
    vectors = tirx.floordiv(chunk.length, i64(lanes))
    if context.ragged_k is not None:
        # The last word of k is not read as a whole: elements of the next row times zero are NaN if those are infinite.
        elements = context.ragged_k - chunk.first * i64(group)
        vectors = I.Bind(tirx.min(vectors, tirx.floordiv(elements, i64(lanes * group))))
    with I.serial(i64(0), count) as r:
        buffer, place = context.left.row(context, rows.row + r)
        with I.serial(i64(0), vectors) as v:
            value = words.of_row(buffer, place, chunk.first + v * i64(lanes), lanes)
            I.buffer_store(rows.buffer, value, [r, context.vectors.ramp(v * i64(lanes))])
        with I.serial(vectors * i64(lanes), chunk.length) as p:
            value = words.of_row(buffer, place, chunk.first + p, limit=context.ragged_k)
            I.buffer_store(rows.buffer, value, [r, p])


def fill_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """Zeros behind the last words of ``count`` packed rows."""
    for first, end in _surplus(context, chunk):
        word = i64(rows.word_elements(context.words))
        zero = constant(0, str(rows.buffer.dtype), 1)
        with I.serial(i64(0), count) as r, I.serial(first * word, end * word) as p:
            I.buffer_store(rows.buffer, zero, [r, p])


def _surplus(context: EmitContext, chunk: Chunk) -> list[tuple[TirExpr, TirExpr]]:
    """The words that the last multiplication of a chunk has beyond its length, if it may have any."""
    steps, length = context.words.atom.steps, chunk.length
    if steps == 1 or (isinstance(length, tirx.IntImm) and int(length) % steps == 0):
        return []
    return [(length, _whole(length, steps))]
