"""Panels of the right operand gathered as words: neighbours in k of every column side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.indexing import Values
from tuner.schedule.product.match.factors import in_words
from tuner.schedule.product.operands.gather import columns_in_vector, load_piece, runs_of_vector, strided_read
from tuner.schedule.product.operands.word_rows import elements_of, narrowed, padding_of
from tuner.schedule.product.packing import Place, transpose_tile
from tuner.schedule.product.panels import PackedSlice
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dtypes import constant, stored_type, vector_type
from tuner.schedule.vector.memory import Vectors


def words_of_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """A panel's slice of a right operand that is gathered."""
    write = _elements if strided_read(context) is None else _pieces
    write(context, panel, to, chunk)


def words_of_view(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """A panel's slice of a right operand that lies as a matrix."""
    write = _from_rows if context.right.lies_along_n else _from_columns
    write(context, panel, to, chunk)


def _store(context: EmitContext, to: PackedSlice, place: TirExpr, v: TirExpr, neighbours: list[TirExpr]) -> None:
    """Vectors of columns at the neighbours in k of one word, side by side."""
    words, lanes = context.words, context.vectors.lanes
    parts = [I.Bind(narrowed(words, value, bool(words.row_head))) for value in neighbours]
    order = [j * lanes + lane for lane in range(lanes) for j in range(words.atom.group)]
    word = tirx.Shuffle(parts, [tirx.IntImm("int32", lane) for lane in order])
    columns = tirx.Ramp(v * i64(words.width), i64(1), words.width)
    I.buffer_store(to.buffer, word, [to.index, place, columns])


# -- what lies as a matrix, of whole words -----------------------------------------------------------------------------
def _from_rows(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Of [k, n]."""
    group, lanes = context.words.atom.group, context.vectors.lanes
    with I.serial(i64(0), chunk.length) as step:
        place = chunk.first - to.first + step
        for v in range(panel.vectors):
            neighbours = []
            for j in range(group):
                buffer, at = context.right.step(context, (chunk.first + step) * i64(group) + i64(j))
                value = context.vectors.load(buffer, at, panel.column + i64(v * lanes), panel.limit)
                neighbours.append(I.Bind(value))
            _store(context, to, place, i64(v), neighbours)


def _from_columns(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Of [n, k]: squares of lanes x lanes words, turned over in registers."""
    words, lanes = context.words, context.vectors.lanes
    with I.serial(i64(0), tirx.floordiv(chunk.length + i64(lanes - 1), i64(lanes))) as square:
        step = I.Bind(square * i64(lanes))
        first = (chunk.first + step) * i64(words.atom.group)

        def of_column(buffer: TirExpr, outer: tuple[TirExpr, ...], first: TirExpr = first) -> TirExpr:
            # Words past the chunk are those of the next one, or zero past k.
            elements = I.Bind(Vectors(words.width).load(buffer, outer, first, context.depth))
            return tirx.reinterpret(vector_type("int32", lanes), narrowed(words, elements, bool(words.row_head)))

        with I.serial(i64(0), i64(panel.vectors)) as v:
            transpose_tile(context, Place(panel, to, v, chunk.first - to.first + step), of_column)


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
            _store(context, to, place, v, neighbours)


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
                value = narrowed(words, I.Bind(value), bool(words.row_head))
                I.buffer_store(to.buffer, value, [to.index, place, column * i64(group) + i64(j)])
