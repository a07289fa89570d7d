"""Results written from a buffer to where they belong, through the elementwise stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.program.expr import Axis, Read, reads
from tuner.program.notation import Stage
from tuner.schedule.access import stride
from tuner.schedule.access import values as values_of
from tuner.schedule.loops.reading import Reader
from tuner.schedule.product.context import EmitContext, Panel
from tuner.schedule.product.epilogue import rounded
from tuner.schedule.product.indexing import Values
from tuner.schedule.product.operand import Place, Result
from tuner.schedule.product.operands.gather import MAX_STRIDE
from tuner.schedule.product.rows import Extent
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, element_type, lanes_of, stored
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors, fenced_integers, workspace

Range = tuple[TirExpr, TirExpr]
"""The first of something, and how many."""


@dataclass(frozen=True)
class ScatteredResult(Result):
    """Results that go through a buffer for each block, and from there to where they belong, through ``stages``."""

    total: str
    dtype: str
    computed: str
    epilogue: tuple[Stage, ...] = ()

    @contextmanager
    def collected(self, context: EmitContext, rows: Extent, columns: Range, skipped: TirExpr) -> Iterator[Result]:
        first, number = rows()
        count = I.Bind(number)
        width = I.Bind(tirx.max(skipped + columns[1], i64(0)) + i64(context.nr))
        with workspace((count, width), self.total) as buffer:
            yield BufferedResult(buffer, first, self.total, self.computed)
            scatter(context, buffer, (first, count), columns, skipped)


@dataclass(frozen=True)
class BufferedResult(Result):
    """A buffer whose row 0 is row ``first`` of the results."""

    buffer: TirExpr
    first: TirExpr
    dtype: str
    computed: str
    epilogue: tuple[Stage, ...] = ()

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return self.buffer, (row - self.first,)

    def within(self, panel: Panel) -> Panel:
        """The panel by itself: the buffer holds it alone."""
        return replace(panel, column=i64(0), limit=None if panel.limit is None else panel.limit - panel.column)


def scatter(context: EmitContext, buffer: TirExpr, rows: Range, columns: Range, skipped: TirExpr) -> None:
    """These rows and columns of the output, in runs of the last axis of n.

    ``buffer`` holds them from [0, ``skipped``] on.
    """
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
    axis, column = context.form.parts[context.form.n[-1]].axis, values[context.form.n[-1]]
    vectors = Vectors(lanes)
    # Along an axis of two parts, what is past the last one of the run lies as much past it in the axis.
    limit = index[axis] + (last - column)
    past = place[1] + (last - column)
    result = buffer[place] if lanes == 1 else vectors.load(buffer, place[:1], place[1], past)

    def read(node: Read) -> TirExpr:
        if node.tensor in workload.program.stage:
            return result
        along = axis if lanes > 1 else None
        return Reader(workload, context.function, context.buffers, index, lanes, along, limit).read(node)

    def value_of(name: str) -> TirExpr:
        return tirx.Ramp(index[name], i64(1), lanes) if name == axis and lanes > 1 else index[name]

    evaluator = Evaluator(workload.element_types, lanes, read, value_of, context.function.extents.__getitem__)
    for before, stage in zip(workload.program.stages, context.form.stages, strict=False):
        result = bound(rounded(result, workload.tensors[before.tensor].dtype))
        result = evaluator.value(stage.body)
    if element_type(result) != context.form.out_dtype:
        result = bound(cast(bound(result), context.form.out_dtype))
        result = stored(result, context.form.out_dtype)
    *outer, last_index = (index[name] for name in workload.program.stages[0].axes)
    out = context.buffers[context.form.out]
    if lanes == 1:
        I.buffer_store(out, result, [*outer, last_index])
    elif step == 1:
        vectors.store(out, result, outer, last_index, limit)
    else:
        _store_strided(out, bound(result), [*outer, last_index], last - column, step)


def _store_strided(out: TirExpr, value: TirExpr, at: Sequence[TirExpr], count: TirExpr, step: int) -> None:
    """The first ``count`` lanes, or all if there are fewer, to every ``step``-th element from there on."""
    lanes = lanes_of(value)
    valid = bound(tirx.Cast("int32", tirx.min(count, i64(lanes)) * i64(step)))
    for part in range(step):
        places = [part * lanes + lane for lane in range(lanes)]
        spread = tirx.Shuffle([value], [tirx.IntImm("int32", place // step) for place in places])
        number = tirx.Ramp(tirx.IntImm("int32", part * lanes), 1, lanes)
        here = tirx.Shuffle(
            [tirx.IntImm("int32", int(place % step == 0)) for place in places],
            [tirx.IntImm("int32", lane) for lane in range(lanes)],
        )
        mask = tirx.And(here != tirx.Broadcast(tirx.IntImm("int32", 0), lanes), number < tirx.Broadcast(valid, lanes))
        place = [*at[:-1], tirx.Ramp(at[-1] + i64(part * lanes), i64(1), lanes)]
        I.evaluate(tirx.op.masked_store(out, fenced_integers(spread), *place, mask))
