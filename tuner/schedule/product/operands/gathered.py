"""Operands whose axes are grouped and that do not lie as matrices: packed before all calls, or gathered at each one, or
read in a padded copy of the image that they are windows of. Results are written from a buffer to where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tuner.program.language.expr import Axis, Read, reads
from tuner.schedule.access import stride
from tuner.schedule.access import values as values_of
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share, number_of
from tuner.schedule.product.axes import AT_ONCE, BY_BLOCK, IN_COPY, TOTAL_BYTES
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Values, by_role
from tuner.schedule.product.estimate import Estimate
from tuner.schedule.product.match.factors import Factors, outer_role
from tuner.schedule.product.operands.column_copy import ColumnCopy
from tuner.schedule.product.operands.columns import COPY_OF_L2, Columns
from tuner.schedule.product.operands.gather import MAX_STRIDE, gather_panel, gather_rows
from tuner.schedule.product.operands.image import image_rows
from tuner.schedule.product.operands.words import words_of_panel, words_of_rows
from tuner.schedule.product.product import Left, Place, Result, Right
from tuner.schedule.product.readers import PackedRows, PackedSlice, RowReader
from tuner.schedule.product.sources import Extent, PanelSource
from tuner.schedule.product.tile import rounded
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, element_type, lanes_of, stored
from tuner.schedule.vector.memory import Vectors, fenced_integers, workspace


# -- packed ahead -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AheadRows(Factors, Left):
    """Rows as ``PackLayout`` packs them: [outer parts and m, k]."""

    is_packed_ahead = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (_outer(context, self.roles) * context.extent["m"] + row,)


@dataclass(frozen=True)
class AheadColumns(Factors, Right):
    """Columns as ``PackLayout`` packs them: [outer parts and panels, k, nr]."""

    is_packed_ahead = True
    lies_along_n = True

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]

    def first_panel(self, context: EmitContext) -> TirExpr:
        return _outer(context, self.roles) * context.packed_panels


def _outer(context: EmitContext, roles: tuple[str, ...]) -> TirExpr:
    sizes = {outer_role(name): context.parts.size(name) for name in context.outer}
    return number_of(by_role(context.outer), {role: sizes[role] for role in roles[:-2]})


# -- gathered ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GatheredRows(Factors, Left):
    """Rows that are gathered as a block of them is packed: as elements, if a step takes words of several."""

    is_gathered, is_packed_ahead, packs_elements = True, False, True

    def pack(self, context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
        gather = words_of_rows if context.words.atom.group > 1 else gather_rows
        gather(context, rows, count, chunk)

    def in_image(self, context: EmitContext, first: TirExpr, count: TirExpr) -> AbstractContextManager[RowReader]:
        return image_rows(context, first, count)


@dataclass(frozen=True)
class GatheredColumns(Factors, Right):
    """Columns that are gathered as a panel is packed. ``columns``: the image that they are windows of, if they are."""

    columns: Columns | None = None
    is_gathered, is_packed_ahead, lies_along_n = True, False, True

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        gather = words_of_panel if context.words.atom.group > 1 else gather_panel
        gather(context, panel, to, chunk)

    @contextmanager
    def in_copy(self, context: EmitContext) -> Iterator[PanelSource]:
        copy = ColumnCopy(context)
        with workspace((i64(copy.columns.channels * copy.columns.phases * copy.plane),)) as copy.packed:
            yield copy

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        """Panels in a copy stay in L2, and what is streamed is the left operand alone: once for each copy if a block of
        its rows stays there, too, and otherwise for each panel."""
        if self.columns is None:
            return in_place
        most = np.array([[self.columns.most(int(width), of.hardware)] for width in of.nr[:, 0]])
        again = of.block_bytes > COPY_OF_L2 * of.hardware.l2_bytes
        passes = np.where(again, of.panels + (of.ragged > 0), np.ceil(of.n / most))
        left = of.rows * of.k * of.words.left_bytes
        return np.where(of.of["pack"] == IN_COPY, passes * left / of.rates.l3_bytes, in_place)

    def packing_cycles(self, of: Estimate) -> Floats:
        """Windows overlap: what is read is less than what is written, and near. A copy has each element once."""
        size, times = of.columns * of.k, np.where(of.of["pack"] == BY_BLOCK, of.blocks, of.of["pack"] == AT_ONCE)
        if self.columns is not None:
            size = np.where(of.of["pack"] == IN_COPY, of.columns * self.columns.copied, size)
            times = np.where(of.of["pack"] == IN_COPY, 1.0, times)
        beyond = TOTAL_BYTES / of.rates.l3_bytes * (size * TOTAL_BYTES > of.hardware.l2_bytes)
        return np.asarray(times * size * (of.rates.copy + beyond))

    def picked(self, of: Estimate) -> Floats:
        is_straight = self.columns is None or self.columns.is_straight(of.lanes)
        return np.where((of.of["pack"] == IN_COPY) & (not is_straight), 1.0, 0.0)


# -- results -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ScatteredResult(Result):
    """Results that go through a buffer for each block, and through the elementwise stages, to where they belong."""

    total: str

    @contextmanager
    def collected(self, context: EmitContext, rows: Extent, columns: Share, skipped: TirExpr) -> Iterator[Result]:
        first, number = rows()
        count = I.Bind(number)
        width = I.Bind(tirx.max(skipped + columns[1], i64(0)) + i64(context.nr))
        with workspace((count, width), self.total) as buffer:
            yield BufferedResult(buffer, first, dtype=self.total, computed=self.computed)
            scatter(context, buffer, (first, count), columns, skipped)


@dataclass(frozen=True)
class BufferedResult(Result):
    """A buffer whose row 0 is row ``first`` of the results."""

    buffer: TirExpr
    first: TirExpr

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return self.buffer, (row - self.first,)

    def within(self, panel: Panel) -> Panel:
        """The panel by itself: the buffer holds it alone."""
        return replace(panel, column=i64(0), limit=None if panel.limit is None else panel.limit - panel.column)


def scatter(context: EmitContext, buffer: TirExpr, rows: Share, columns: Share, skipped: TirExpr) -> None:
    """These rows and columns of the output, each from a first one so many, in runs of the last axis of n. ``buffer``
    holds them from [0, ``skipped``] on."""
    inner, lanes = context.form.n[-1], context.vectors.lanes if in_vectors(context) else 1
    with I.serial(i64(0), rows[1]) as r:
        of_row = {**context.outer, **context.parts.decomposed(context.form.m, rows[0] + r)}
        with context.parts.runs(context.form.n, *columns) as (values, first, last, shift):
            count = tirx.truncdiv(last - first + i64(lanes - 1), i64(lanes))
            with I.serial(i64(0), count) as v:
                column = I.Bind(first + v * i64(lanes))
                place = r, skipped + column + shift
                store_results(context, {**of_row, **values, inner: column}, buffer, place, last, lanes)


def in_vectors(context: EmitContext) -> bool:
    """Whether the last axis of n is that of the output, and the stages behind the contraction read vectors along it;
    where results lie a few elements apart, the same in all lanes."""
    axis = context.form.parts[context.form.n[-1]].axis
    step = step_of_results(context)
    known = {0, 1} if step == 1 else {0}
    behind = [read for stage in context.form.stages for read in reads(stage.body)]
    is_indirect = any(reads(index) for read in behind for index in read.indices)
    is_last = axis == context.parts.whole.program.stages[0].axes[-1]
    as_values = step > 1 and any(Axis(axis) in list(values_of(stage.body)) for stage in context.form.stages)
    is_known = not as_values and {stride(read, axis) for read in behind} <= known
    return is_last and step <= MAX_STRIDE and not is_indirect and is_known


def step_of_results(context: EmitContext) -> int:
    """How far apart neighbours along the last axis of n lie along that axis of the output."""
    axis = context.form.parts[context.form.n[-1]].axis
    places = context.form.phase.places if context.form.phase is not None else ()
    return next((each.step for each in places if each.axis == axis), 1)


def store_results(
    context: EmitContext, values: Values, buffer: TirExpr, place: tuple[TirExpr, TirExpr], last: TirExpr, lanes: int
) -> None:  # fmt: skip
    """One vector of results, those before ``last`` along the last axis of n, through the stages."""
    workload, index, step = context.parts.whole, context.parts.index_of_result(values), step_of_results(context)
    inner, out_dtype = context.form.n[-1], context.form.out_dtype
    axis, left = context.form.parts[inner].axis, last - values[inner]
    # Along an axis of two parts, what is past the last one of the run lies as much past it in the axis.
    limit, along = index[axis] + left, axis if lanes > 1 else None
    reader = Reader(workload, context.function, context.buffers, index, lanes, along, limit)
    result = buffer[place] if lanes == 1 else Vectors(lanes).load(buffer, place[:1], place[1], place[1] + left)
    known = dict[str | Read, TirExpr]()
    evaluator = reader.evaluator(known)
    for before, stage in zip(workload.program.stages, context.form.stages, strict=False):
        known[before.tensor] = bound(rounded(result, workload.tensors[before.tensor].dtype))
        result = evaluator.value(stage.body)
    if element_type(result) != out_dtype:
        result = bound(cast(bound(result), out_dtype))
    written = workload.program.stages[-1]
    if lanes == 1 or step == 1:
        reader.write(written, result)
    else:
        at = [index[name] for name in written.axes]
        _store_strided(context.buffers[written.tensor], bound(stored(result, out_dtype)), at, left, step)


def _store_strided(out: TirExpr, value: TirExpr, at: Sequence[TirExpr], count: TirExpr, step: int) -> None:
    """The first ``count`` lanes, or all if there are fewer, to every ``step``-th element from there on."""
    lanes = lanes_of(value)
    valid = bound(tirx.Cast("int32", tirx.min(count, i64(lanes)) * i64(step)))
    for part in range(step):
        places = [part * lanes + lane for lane in range(lanes)]
        spread = tirx.Shuffle([value], [tirx.IntImm("int32", place // step) for place in places])
        number = tirx.Ramp(tirx.IntImm("int32", part * lanes), 1, lanes)
        is_here = [tirx.IntImm("int32", int(place % step == 0)) for place in places]
        here = tirx.Shuffle(is_here, [tirx.IntImm("int32", lane) for lane in range(lanes)])
        mask = tirx.And(here != tirx.Broadcast(tirx.IntImm("int32", 0), lanes), number < tirx.Broadcast(valid, lanes))
        place = [*at[:-1], tirx.Ramp(at[-1] + i64(part * lanes), i64(1), lanes)]
        I.evaluate(tirx.op.masked_store(out, fenced_integers(spread), *place, mask))
