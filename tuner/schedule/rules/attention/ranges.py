"""Which columns each row sees where data says so: limits of a mask that are read from tensors, and the stages that make
such tensors, as the ranges of a ragged batch by its offsets.

Stages of integers that reduce are computed once, before all else. Then every block of rows asks the limits of each
row: its range, that of each tile and that of the block are kept beside its scores. Nothing is assumed of the data: a
range is cut to the columns that there are, and rows may see less or more than those before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tuner.program.job.task import SearchTask
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.loops.reading import NOTHING, Index, Reader, addition, start_value
from tuner.schedule.loops.shares import Share, over
from tuner.schedule.rules.attention.chain import Chain, Limit
from tuner.schedule.rules.attention.context import Context
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.memory import workspace


# -- stages of positions ----------------------------------------------------------------------------------------------
def position_bytes(task: SearchTask, chain: Chain) -> int:
    return sum(task.workload.tensors[stage.tensor].bytes(task.largest_dims) for stage in chain.positions)


@contextmanager
def with_positions(context: Context) -> Iterator[Context]:
    """The context with a buffer for each stage of positions, computed."""
    task, chain, function = context.task, context.chain, context.function
    buffers: Mapping[str, TirExpr] = function.buffers
    with ExitStack() as stack:
        for stage in chain.positions:
            tensor = task.workload.tensors[stage.tensor]
            shape = tuple(dim_expr(dim, function.symbols) for dim in tensor.dims)
            buffers = {**buffers, stage.tensor: stack.enter_context(workspace(shape, stored_type(tensor.dtype)))}
            _compute(task.workload, replace(function, buffers=buffers), stage)
        yield context.on(replace(function, buffers=buffers))


def _compute(workload: Workload, function: KernelFunction, stage: Stage) -> None:
    """A reduction in the memory of its results, whose last axis is the innermost one: LLVM makes vectors of that."""
    spans = {axis: (i64(0), extent) for axis, extent in function.extents.items()}
    result, dtype = function.buffers[stage.tensor], workload.tensors[stage.tensor].dtype

    def start(index: Index) -> None:
        I.buffer_store(result, start_value(stage, dtype, 1), [index[axis] for axis in stage.axes])

    def add(index: Index) -> None:
        place = [index[axis] for axis in stage.axes]
        evaluator = Reader(workload, function, function.buffers, index, 1, None).evaluator(NOTHING)
        I.buffer_store(result, addition(stage, dtype, evaluator)(I.Bind(result[tuple(place)])), place)

    over(stage.axes, spans, start, {})
    over((*stage.reduce_axes, *stage.axes), spans, add, {})


# -- ranges of rows ---------------------------------------------------------------------------------------------------
# No number is kept on the stack: TVM may put several of different dtypes into one place, and LLVM, which is told that
# these never meet, then takes one for the other.
def fill_ranges(context: Context, row: TirExpr, rows: TirExpr) -> None:
    """Ask each row of a block for its columns."""
    mr, (tiles, block, _) = context.kernel["mr"], context.range_places()
    with I.serial(tiles, block + i64(1)) as number:
        _put(context, number, (context.extent["j"], i64(0)))
    with I.serial(i64(0), rows) as local:
        own = _range_of(context, row + local)
        _put(context, local, own)
        _join(context, I.Bind(tiles + tirx.floordiv(local, i64(mr))), own)
        _join(context, block, own)


def range_of_rows(context: Context, row: TirExpr, last: TirExpr) -> Share:
    """Columns that any of the rows ``row`` to ``last`` sees, each of which is asked."""
    *_, share = context.range_places()
    _put(context, share, (context.extent["j"], i64(0)))
    with I.serial(row, last + i64(1)) as each:
        _join(context, share, _range_of(context, each))
    return context.range_at(share)


def _range_of(context: Context, row: TirExpr) -> Share:
    """The first column that a row sees and the one past the last; of a row that sees none, what changes no range that
    it is joined to."""
    first, end, j = context.bound(row, is_upper=False), context.bound(row, is_upper=True), context.extent["j"]
    for limit in context.chain.mask.limits:
        # An overflow would bring what is hidden back.
        value = I.Bind(tirx.max(tirx.min(_value(context, row, limit), j), i64(-1)))
        if limit.is_upper:
            end = I.Bind(tirx.min(end, value + i64(1)))
        else:
            first = I.Bind(tirx.max(first, value))
    first = I.Bind(tirx.max(first, i64(0)))
    return I.Bind(tirx.Select(first < end, first, j)), I.Bind(tirx.Select(first < end, end, i64(0)))


def _value(context: Context, row: TirExpr, limit: Limit) -> TirExpr:
    own, workload, function = context.at(i=row), context.task.workload, context.function
    evaluator = Reader(workload, function, function.buffers, own.index, 1, None).evaluator(NOTHING)
    total = i64(limit.constant)
    for sign, term in limit.terms:
        total = total + i64(sign) * I.Bind(tirx.Cast("int64", evaluator.value(term)))
    return total


def _join(context: Context, place: TirExpr, other: Share) -> None:
    first, end = (I.Bind(context.room[name][place]) for name in ("firsts", "ends"))
    _put(context, place, (tirx.min(first, other[0]), tirx.max(end, other[1])))


def _put(context: Context, place: TirExpr, range_: Share) -> None:
    for name, value in zip(("firsts", "ends"), range_, strict=True):
        I.buffer_store(context.room[name], value, [place])
