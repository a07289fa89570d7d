"""Panels of the right operand gathered as words: neighbours in k of every column side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.indexing import Values
from tuner.schedule.product.match.factors import in_words
from tuner.schedule.product.operands.gather import columns_in_vector, load_piece, runs_of_vector, strided_read
from tuner.schedule.product.operands.word_rows import elements_of, padding_of
from tuner.schedule.product.packing import store_columns
from tuner.schedule.product.panels import PackedSlice
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dtypes import constant, stored_type


def words_of_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """A panel's slice of a right operand that is gathered."""
    write = _elements if strided_read(context) is None else _pieces
    write(context, panel, to, chunk)


# -- what is gathered --------------------------------------------------------------------------------------------------
@contextmanager
def _words(
    context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk
) -> Iterator[tuple[list[tuple[Values, TirExpr | None]], TirExpr]]:
    """The words of a chunk: the values of the parts of k at each of its neighbours, and whether that is before the end
    of k (None: it is); and the row of the packed panel."""
    group, names, first = context.words.atom.group, context.form.k, chunk.first - to.first
    if in_words(context.form.parts, names[-1:], group):
        # No word goes from one run of the last part to the next.
        steps = chunk.first * i64(group), chunk.length * i64(group)
        with context.parts.runs(names, *steps) as (values, *ends, shift):
            start, end, before = (tirx.truncdiv(each, i64(group)) for each in (*ends, shift))
            with I.serial(start, end) as word:
                in_k = [{**values, names[-1]: word * i64(group) + i64(j)} for j in range(group)]
                yield [(of_step, None) for of_step in in_k], first + word + before
        return
    is_whole = in_words(context.form.parts, names, group)
    with I.serial(i64(0), chunk.length) as step:
        each: list[tuple[Values, TirExpr | None]] = []
        for j in range(group):
            flat = I.Bind((chunk.first + step) * i64(group) + i64(j))
            each.append((context.parts.decomposed(names, flat), None if is_whole else flat < context.depth))
        yield each, first + step


def _pieces(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Vectors of columns, each of which may go over several runs of the last axis of n."""
    lanes, strided = context.vectors.lanes, strided_read(context)
    assert strided is not None
    dtype = stored_type(str(context.form.right.read_dtype))
    with I.serial(i64(0), i64(panel.vectors)) as v:
        column = I.Bind(panel.column + v * i64(lanes))
        valid = columns_in_vector(panel, column, lanes)
        over = runs_of_vector(context, column)
        with _words(context, panel, to, chunk) as (each, place):
            neighbours = []
            for values, is_step in each:
                slot, every = I.alloc_buffer((lanes,), dtype), tirx.Ramp(0, 1, lanes)
                outside, end = padding_of(context, strided.read), valid
                if is_step is not None:
                    outside = tirx.Select(is_step, outside, constant(0, dtype, 1))
                    end = I.Bind(tirx.Select(is_step, valid, i64(0)))
                I.buffer_store(slot, tirx.Broadcast(outside, lanes), [every])

                def piece(
                    of_run: Values, start: TirExpr, last: TirExpr, lane_zero: TirExpr,
                    values: Values = values, slot: TirExpr = slot, end: TirExpr = end,
                ) -> None:  # fmt: skip
                    at = {**context.outer, **values, **of_run, context.form.n[-1]: lane_zero}
                    load_piece(context, strided, slot, at, start, tirx.min(last, end))

                over(piece)
                neighbours.append(I.Bind(slot[every]))
            store_columns(context, to, place, v, context.words.of_columns(neighbours))


def _elements(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Element by element. Columns past the last one are left as they are: they are computed and not stored."""
    words, group = context.words, context.words.atom.group
    zero = constant(0, stored_type(str(context.form.right.read_dtype)), 1)
    with I.serial(i64(0), context.columns_in(panel)) as column:
        of_column = {**context.outer, **context.parts.decomposed(context.form.n, panel.column + column)}
        with _words(context, panel, to, chunk) as (each, place):
            for j, (values, is_step) in enumerate(each):
                value, inside, outside = elements_of(context, context.form.right, {**of_column, **values})
                value = value if inside is None else tirx.if_then_else(inside, value, outside)
                value = value if is_step is None else tirx.if_then_else(is_step, value, zero)
                value = words.narrowed(I.Bind(value), words.row_compensation)
                I.buffer_store(to.buffer, value, [to.index, place, column * i64(group) + i64(j)])
