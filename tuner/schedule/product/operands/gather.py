"""Operands gathered at each call: blocks of them, at a range of k, as the register tile reads them.

Padding is filled in here, so that the tile knows of none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

from tuner.program.language.expr import Expr, Read
from tuner.schedule.access import step_of
from tuner.schedule.loops.reading import NOTHING, Reader
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Values
from tuner.schedule.product.match.factors import is_contiguous
from tuner.schedule.product.readers import PackedRows, PackedSlice
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.dtypes import cast, lanes_of, loaded
from tuner.schedule.vector.memory import DTYPE, Vectors, loaded_where

MAX_STRIDE = 4
"""Elements between lanes of a read that is loaded as vectors of which some lanes are taken."""
MIN_IN_RUN = 5
"""Columns in a run for which the pieces of a vector are written out."""


# -- what a tensor has, and what it is padded with --------------------------------------------------------------------
def reader_at(
    context: EmitContext, values: Values, lanes: int = 1, along: str | None = None, limit: TirExpr | None = None
) -> Reader:
    """Reads of the program at these values of the parts of its axes."""
    workload, index = context.task.workload, context.parts.index(values)
    return Reader(workload, context.function, context.buffers, index, lanes, along, limit)


def end_inside(outer: Sequence[TirExpr], sizes: Sequence[TirExpr], length: TirExpr) -> TirExpr:
    """Where a line ends whose outer indices are these: at ``length``, or at 0 where one of them is outside its size."""
    inside: TirExpr = tirx.IntImm("bool", 1)
    for value, size in zip(outer, sizes, strict=True):
        inside = tirx.And(inside, tirx.And(value >= i64(0), value < size))
    return bound_unless_known(tirx.Select(inside, length, i64(0)))


def lanes_inside(element: TirExpr, end: TirExpr, lanes: int) -> TirExpr:
    """Which lanes of the vector at ``element`` of a line are in it: not before 0, and before ``end``."""
    limits = (i64(0) - element, end - element)
    first, last = (
        bound_unless_known(tirx.Cast("int32", tirx.max(tirx.min(limit, i64(lanes)), i64(0)))) for limit in limits
    )
    return _between(_numbers(0, lanes), first, last)


def padded_vector(
    context: EmitContext, tensor: str, buffer: TirExpr, place: Sequence[TirExpr], mask: TirExpr
) -> TirExpr:
    """What a tensor has there as float32, and what it is padded with in the other lanes."""
    lanes, workload = context.vectors.lanes, context.task.workload
    dtype, padding = workload.tensors[tensor].dtype, dict(workload.padding).get(tensor, 0.0)
    value = bound(loaded_where(mask, buffer, place))
    value = value if dtype == DTYPE else _as_float32(value, dtype)
    return tirx.Select(mask, value, tirx.Broadcast(tirx.FloatImm(DTYPE, padding), lanes))


def padded_read(context: EmitContext, read: Read, values: Values, at: Mapping[int, TirExpr], mask: TirExpr) -> TirExpr:
    """What a read has at ``values`` as ``padded_vector`` loads it, but that its indices ``at`` are given."""
    found = reader_at(context, values).indices(read)
    place = [at.get(position, value) for position, value in enumerate(found)]
    return padded_vector(context, read.tensor, context.buffers[read.tensor], place, mask)


def _numbers(first: int, lanes: int) -> TirExpr:
    return tirx.Ramp(tirx.IntImm("int32", first), 1, lanes)


def _between(elements: TirExpr, first: TirExpr, last: TirExpr) -> TirExpr:
    """Which of a vector of int32 are not before ``first`` and before ``last``."""
    lanes = lanes_of(elements)
    return tirx.And(elements >= tirx.Broadcast(first, lanes), elements < tirx.Broadcast(last, lanes))


def _as_float32(value: TirExpr, dtype: str) -> TirExpr:
    """``value``, read from a buffer of another ``dtype``. It is used several times: bind it."""
    return bound(cast(bound(loaded(value, dtype)), DTYPE))


def product(
    context: EmitContext, factors: tuple[Expr, ...], values: Values, lanes: int = 1, along: str | None = None,
    limit: TirExpr | None = None,
) -> TirExpr:  # fmt: skip
    """The product of some factors: of one element, or of ``lanes`` from there ``along`` an axis."""
    evaluator = reader_at(context, values, lanes, along, limit).evaluator(NOTHING)
    each = (I.Bind(evaluator.value(factor, DTYPE)) for factor in factors)
    return reduce(lambda result, value: I.Bind(result * value), each)


# -- blocks -----------------------------------------------------------------------------------------------------------
def gather_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """``count`` rows of the left operand; in vectors along the last axis of k where that is contiguous."""
    factors, inner = context.form.left.factors, context.form.k[-1]
    lanes = _lanes_of_run(context.vectors.lanes, context.form.parts[inner].extent.constant)
    along = inner if is_contiguous(factors, inner) else None
    with I.serial(i64(0), count) as r:
        of_row = {**context.outer, **context.parts.decomposed(context.form.m, rows.row + r)}
        with context.parts.runs(context.form.k, chunk.first, chunk.length) as (values, first, last, shift):
            if along is None:
                with I.serial(first, last) as step:
                    value = product(context, factors, {**of_row, **values, inner: step})
                    I.buffer_store(rows.buffer, value, [r, step + shift])
            else:
                # What is stored past a run is overwritten by the next one, or lies in the room between rows.
                with I.serial(i64(0), tirx.truncdiv(last - first + i64(lanes - 1), i64(lanes))) as v:
                    step = I.Bind(first + v * i64(lanes))
                    value = product(context, factors, {**of_row, **values, inner: step}, lanes, along, last)
                    I.buffer_store(rows.buffer, value, [r, Vectors(lanes).ramp(step + shift)])


def _lanes_of_run(lanes: int, size: int | None) -> int:
    """Of a vector that runs of ``size`` elements are copied in: a wide one of few elements costs as much as if it were
    full, and its stores cross lines of the cache."""
    return lanes if size is None else min(lanes, max(2, 1 << (size - 1).bit_length()))


def gather_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """A panel's slice of the right operand, in vectors along n where these can be loaded. Columns past the last one are
    left as they are, or are anything: they are computed and not stored."""
    lanes, n, factors = context.vectors.lanes, context.form.n, context.form.right.factors
    strided = strided_read(context)
    if strided is None and not (len(n) == 1 and is_contiguous(factors, n[0])):
        with I.serial(i64(0), context.columns_in(panel)) as column:
            of_column = {**context.outer, **context.parts.decomposed(n, panel.column + column)}
            with _steps(context, to, chunk) as (values, place):
                value = product(context, factors, {**of_column, **values})
                I.buffer_store(to.buffer, value, [to.index, place, column])
        return
    limit = context.extent["n"] if panel.limit is None else panel.limit
    along_n = partial(product, context, factors, lanes=lanes, along=n[-1], limit=limit)
    with I.serial(i64(0), i64(panel.vectors)) as v:
        column = bound(panel.column + v * i64(lanes))
        load = along_n if strided is None else _pieces(context, panel, column, strided)
        with _steps(context, to, chunk) as (values, place):
            value = load({**context.outer, **values, n[-1]: column})
            I.buffer_store(to.buffer, value, [to.index, place, context.vectors.ramp(v * i64(lanes))])


@contextmanager
def _steps(context: EmitContext, to: PackedSlice, chunk: Chunk) -> Iterator[tuple[Values, TirExpr]]:
    """The steps of a chunk: the values of the parts of k, and the row of the packed panel."""
    names = context.form.k
    with (
        context.parts.runs(names, chunk.first, chunk.length) as (values, first, last, shift),
        I.serial(first, last) as step,
    ):
        yield {**values, names[-1]: step}, chunk.first - to.first + shift + step


# -- strided reads ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strided:
    """A read whose last index alone goes along the last axis of n, by ``step`` elements."""

    read: Read
    step: int


def strided_read(context: EmitContext) -> Strided | None:
    """The right operand, if it is such a read."""
    (factor, *others), name = context.form.right.factors, context.form.n[-1]
    part = context.form.parts[name]
    if others or not isinstance(factor, Read) or part.step != 1 or part.axis != name:
        return None
    step = step_of(factor, name) or 0
    return Strided(factor, step) if 1 <= step <= MAX_STRIDE else None


def _pieces(context: EmitContext, panel: Panel, column: TirExpr, strided: Strided) -> Callable[[Values], TirExpr]:
    """How to load a vector of columns that may go over several runs of the last axis of n: a masked load for each."""
    lanes, padding = context.vectors.lanes, dict(context.task.workload.padding).get(strided.read.tensor, 0.0)
    valid, over = columns_in_vector(panel, column, lanes), runs_of_vector(context, column)

    def load(values: Values) -> TirExpr:
        slot = I.alloc_buffer((lanes,), DTYPE)
        return loaded_runs(context, strided, slot, over, values, tirx.FloatImm(DTYPE, padding), valid)

    return load


def columns_in_vector(panel: Panel, column: TirExpr, lanes: int) -> TirExpr:
    """Lanes of a vector of columns before which all are columns that there are."""
    return i64(lanes) if panel.limit is None else bound(tirx.min(panel.limit - column, i64(lanes)))


Piece = Callable[[Values, TirExpr, TirExpr, TirExpr], None]
Runs = Callable[[Piece], None]


def runs_of_vector(context: EmitContext, column: TirExpr) -> Runs:
    """How to go over the runs that a vector of columns from ``column`` on touches: the values of the outer parts of n,
    the first lane and the one past the last, and what the last axis would be in lane 0."""
    lanes, (*outer, name) = context.vectors.lanes, context.form.n
    if not outer:
        return lambda use: use({}, i64(0), i64(lanes), column)
    size, fixed = context.parts.divisor(name), context.form.parts[name].extent.constant
    run, at = bound(tirx.truncdiv(column, size)), bound(tirx.truncmod(column, size))

    def piece(use: Piece, values: Values, before: TirExpr) -> None:
        use(values, tirx.max(before, i64(0)), before + size, i64(0) - before)

    if fixed is not None and fixed >= MIN_IN_RUN:
        count = 1 if fixed % lanes == 0 else (lanes - 2) // fixed + 2
        of_runs = [_in_slots(context.parts.decomposed(outer, run + i64(number))) for number in range(count)]

        def unrolled(use: Piece) -> None:
            for number, values in enumerate(of_runs):
                piece(use, values, i64(number * fixed) - at)

        return unrolled

    def looped(use: Piece) -> None:
        with I.serial(i64(0), tirx.truncdiv(at + i64(lanes - 1), size) + i64(1)) as number:
            before = bound(number * size - at)
            piece(use, _in_slots(context.parts.decomposed(outer, run + number)), before)

    return looped


def loaded_runs(
    context: EmitContext, strided: Strided, slot: TirExpr, over: Runs, values: Values, outside: TirExpr, valid: TirExpr
) -> TirExpr:  # fmt: skip
    """A vector of columns, of which ``valid`` lanes are columns: run after run into ``slot``, ``outside`` elsewhere."""
    every = context.vectors.ramp(0)
    I.buffer_store(slot, tirx.Broadcast(outside, context.vectors.lanes), [every])

    def piece(of_run: Values, start: TirExpr, end: TirExpr, lane_zero: TirExpr) -> None:
        at = {**values, **of_run, context.form.n[-1]: lane_zero}
        _load_piece(context, strided, slot, at, start, tirx.min(end, valid))

    over(piece)
    return slot[every]


def _in_slots(values: Values) -> Values:
    """Values kept in stack slots: TVM's simplifier substitutes bindings into every use, which takes long to build."""
    return {name: bound_unless_known(value) for name, value in values.items()}


def _load_piece(
    context: EmitContext, strided: Strided, slot: TirExpr, values: Values, first: TirExpr, last: TirExpr
) -> None:
    """Lanes ``first`` to ``last`` of ``slot``: what is read there, where it is inside the tensor, as float32, or as it
    is stored in a slot of that dtype."""
    workload, lanes, step, tensor = context.task.workload, context.vectors.lanes, strided.step, strided.read.tensor
    buffer, dtype = context.buffers[tensor], workload.tensors[tensor].dtype
    at = [bound_unless_known(index) for index in reader_at(context, values).indices(strided.read)]
    if tensor in dict(workload.padding):
        sizes = context.parts.sizes_of(tensor)
        *outer, inside = [(value, size) for value, size in zip(at, sizes, strict=True)]
        first = tirx.max(first, _rounded_up(i64(0) - inside[0], step))
        last = tirx.min(last, _rounded_up(inside[1] - inside[0], step))
        for value, size in outer:
            last = tirx.Select(tirx.And(value >= i64(0), value < size), last, i64(0))
    first, last = (bound(tirx.Cast("int32", tirx.min(end, i64(lanes)))) for end in (first, last))
    loads = []
    for part in range(step):
        mask = _between(_numbers(part * lanes, lanes), first * step, last * step - (step - 1))
        place = [*at[:-1], context.vectors.ramp(at[-1] + i64(part * lanes))]
        elements = I.Bind(loaded_where(mask, buffer, place))
        as_stored = str(slot.dtype) == str(buffer.dtype)
        loads.append(elements if as_stored else _as_float32(elements, dtype))
    if step > 1:
        chosen = [tirx.IntImm("int32", lane * step) for lane in range(lanes)]
        loads = [I.Bind(tirx.Shuffle(loads, chosen))]
    every, mask = context.vectors.ramp(0), _between(_numbers(0, lanes), first, last)
    I.buffer_store(slot, tirx.Select(mask, loads[0], slot[every]), [every])


def _rounded_up(value: TirExpr, step: int) -> TirExpr:
    return value if step == 1 else tirx.floordiv(value + i64(step - 1), i64(step))
