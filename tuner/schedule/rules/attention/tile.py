"""Both products of attention by register tiles: scores from q and k, and the output from exponentials and v."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.atom import Words
from tuner.schedule.product.product import ceil_div
from tuner.schedule.rules.attention.context import Context, Tile
from tuner.schedule.rules.attention.words import products
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, stored
from tuner.schedule.vector.memory import DTYPE

Slots = list[list[TirExpr]]
"""The totals of a register tile, a slot for each vector: larger buffers would become a heap workspace
(docs/decisions/0002)."""


# -- loops ------------------------------------------------------------------------------------------------------------
def is_multiple(value: TirExpr, step: int) -> bool:
    """Whether there is known to be no ragged rest."""
    return isinstance(value, tirx.IntImm) and int(value) % step == 0


def along_d(context: Context) -> Iterator[tuple[TirExpr, TirExpr | None]]:
    """Vectors along d by their first elements: whole ones, then the ragged one, which has a limit."""
    d, lanes = context.extent["d"], context.lanes
    whole = tirx.floordiv(d, i64(lanes))
    with I.serial(i64(0), whole) as number:
        yield number * i64(lanes), None
    if not is_multiple(d, lanes):
        with I.If(whole * i64(lanes) < d), I.Then():
            yield whole * i64(lanes), d


def along_e(context: Context) -> Iterator[tuple[list[TirExpr], TirExpr | None]]:
    """The vectors of panels along e by their first elements, with the limit of their loads where they are ragged."""
    lanes, ev, e = context.lanes, context.kernel["ev"], context.extent["e"]
    width = ev * lanes
    whole = I.Bind(tirx.floordiv(e, i64(width)))

    def vectors(first: TirExpr, count: int) -> list[TirExpr]:
        return [first + i64(v * lanes) for v in range(count)]

    if not (isinstance(e, tirx.IntImm) and int(e) < width):
        with I.serial(i64(0), whole) as panel:
            yield vectors(I.Bind(panel * i64(width)), ev), None
    if not isinstance(e, tirx.IntImm):
        with I.If(whole * i64(width) < e), I.Then():
            yield vectors(I.Bind(whole * i64(width)), ev), e
    elif rest := int(e) % width:
        yield vectors(i64(int(e) - rest), -(-rest // lanes)), e if rest % lanes else None


# -- a register tile --------------------------------------------------------------------------------------------------
def scores_of_panel(context: Context, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """Scores of rows of q and a packed panel of k, to ``column`` of a block and those behind it."""
    vectors, lanes, nv, keys = context.vectors, context.lanes, context.kernel["nv"], context.room["keys"]
    sums = _slots(context, tile.height, nv)
    rows = [tile.row + i64(number) for number in range(tile.height)]
    if tile.valid is not None:
        rows = [tirx.min(row, context.extent["i"] - i64(1)) for row in rows]
    for step, limit in _steps_of_d(context):
        scalars = [_of_q(context, row, step, limit) for row in rows]
        columns = [keys[panel, step, vectors.ramp(i64(v * lanes))] for v in range(nv)]
        _add_products(context, sums, scalars, columns, context.scored)
    for row, line in enumerate(sums):
        for v, slot in enumerate(line):
            place = [tile.local + i64(row), vectors.ramp(column + i64(v * lanes))]
            I.buffer_store(context.room["scores"], slot[context.every], place)


def scores_in_place(context: Context, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """Scores of as many columns as a vector has lanes, each by vectors along d: packing does not pay for few rows."""
    lanes, every, j = context.lanes, context.every, context.extent["j"]
    columns = [tirx.min(panel * i64(lanes) + i64(lane), j - i64(1)) for lane in range(lanes)]
    with I.serial(i64(0), tile.count) as row:
        (sums,) = _slots(context, 1, lanes)
        for step, limit in along_d(context):
            left = I.Bind(context.load(context.chain.q, lanes, limit, i=tile.row + row, d=step))
            for slot, each in zip(sums, columns, strict=True):
                right = context.load(context.chain.k, lanes, limit, j=each, d=step)
                I.buffer_store(slot, slot[every] + left * right, [every])
        value = context.vectors.totals([slot[every] for slot in sums])
        I.buffer_store(context.room["scores"], value, [tile.local + row, context.vectors.ramp(column)])


def values(context: Context, tile: Tile, columns: Share, start: TirExpr) -> None:
    """Sums over ``columns`` of a block that starts at ``start``: to the output, or onto those of earlier blocks."""
    room, vectors, is_blocked = context.room, context.vectors, context.kernel["cols"]
    lines = [tile.local + i64(row) for row in range(tile.height)]
    for places, limit in along_e(context):
        sums = _slots(context, tile.height, len(places), is_cleared=not is_blocked)
        for line, local in zip(sums, lines, strict=True) if is_blocked else ():
            factor = bound(room["factor"][local])
            for slot, e in zip(line, places, strict=True):
                scaled = room["mixed"][local, vectors.ramp(e)] * tirx.Broadcast(factor, context.lanes)
                I.buffer_store(slot, scaled, [context.every])
        for weights, loaded in _steps_of_j(context, lines, columns, start, places, limit):
            _add_products(context, sums, weights, loaded, context.mixing)
        for row in tile.existing():
            for slot, e in zip(sums[row], places, strict=True):
                if is_blocked:
                    I.buffer_store(room["mixed"], slot[context.every], [lines[row], vectors.ramp(e)])
                else:
                    _write(context, tile.row + i64(row), lines[row], e, slot[context.every], limit)


def _steps_of_d(context: Context) -> Iterator[tuple[TirExpr, TirExpr | None]]:
    """Steps of the first product; the limit of d where not all elements of a word are there."""
    d = context.extent["d"]
    if context.scored is None:
        for step in _turns(context, i64(0), d):
            yield step, None
        return
    group = context.scored.atom.group
    whole = I.Bind(tirx.floordiv(d, i64(group)))
    for step in _turns(context, i64(0), whole):
        yield step, None
    if not is_multiple(d, group):
        with I.If(whole * i64(group) < d), I.Then():
            yield whole, d


def _of_q(context: Context, row: TirExpr, step: TirExpr, limit: TirExpr | None) -> TirExpr:
    if context.scored is None:
        return context.load(context.chain.q, 1, None, i=row, d=step)
    buffer, (*outer, _) = context.place(context.chain.q, i=row, d=step)
    return context.scored.of_row(buffer, outer, step, limit=limit)


def _steps_of_j(
    context: Context, lines: list[TirExpr], columns: Share, start: TirExpr, places: list[TirExpr], limit: TirExpr | None
) -> Iterator[tuple[list[TirExpr], list[TirExpr]]]:
    """Steps of the second product: the exponentials of ``lines``, and v from each of ``places`` on."""
    room, words = context.room, context.mixing
    if words is None:
        for column in _turns(context, *columns):
            weights = [room["scores"][local, column - start] for local in lines]
            yield weights, [context.load(context.chain.v, context.lanes, limit, j=column, e=e) for e in places]
        return
    # Blocks start at whole words. Behind the last column exponentials are 0 up to a whole vector, and so are values
    # where there are none.
    group, width = i64(words.atom.group), i64(context.kernel["ev"] * context.lanes)
    first, begin = I.Bind(tirx.floordiv(columns[0], group)), tirx.floordiv(start, group)
    panel = I.Bind(tirx.floordiv(places[0], width))
    for step in _turns(context, first, first + ceil_div(columns[1] - columns[0], words.atom.group)):
        weights = [words.of_row(room["weights"], [local], step - begin) for local in lines]
        inside = [context.vectors.ramp(e - panel * width) for e in places]
        yield weights, [room["values"][panel, step, each] for each in inside]


def _slots(context: Context, height: int, vectors: int, is_cleared: bool = True) -> Slots:
    sums = [[I.alloc_buffer((context.lanes,), DTYPE) for _ in range(vectors)] for _ in range(height)]
    for slot in (slot for line in sums for slot in line if is_cleared):
        I.buffer_store(slot, context.vectors.zero(), [context.every])
    return sums


def _turns(context: Context, first: TirExpr, end: TirExpr) -> Iterator[TirExpr]:
    """Steps of a sum, ``ku`` of them a turn, then those that are left over."""
    unroll = context.kernel["ku"]
    if unroll == 1:
        with I.serial(first, end) as at:
            yield at
        return
    turns = I.Bind(tirx.floordiv(end - first, i64(unroll)))
    with I.serial(i64(0), turns) as turn:
        for number in range(unroll):
            yield first + turn * i64(unroll) + i64(number)
    if not is_multiple(end - first, unroll):
        with I.serial(first + turns * i64(unroll), end) as at:
            yield at


def _add_products(
    context: Context, sums: Slots, rows: list[TirExpr], columns: list[TirExpr], words: Words | None
) -> None:
    """One step of a sum: the outer product of scalars and vectors, or of words."""
    columns = [I.Bind(column) for column in columns]
    for line, row in zip(sums, rows, strict=True):
        value = I.Bind(tirx.Broadcast(row, context.lanes))
        for slot, column in zip(line, columns, strict=True):
            total = slot[context.every]
            total = total + value * column if words is None else products(words, total, value, column)
            I.buffer_store(slot, total, [context.every])


# -- the output -------------------------------------------------------------------------------------------------------
def write_rows(context: Context, row: TirExpr, rows: TirExpr) -> None:
    """The output of a block of rows, from the sums over all blocks of columns."""
    with I.serial(i64(0), rows) as local:
        for places, limit in along_e(context):
            for e in places:
                value = context.room["mixed"][local, context.vectors.ramp(e)]
                _write(context, row + local, local, e, value, limit)


def _write(context: Context, row: TirExpr, local: TirExpr, e: TirExpr, value: TirExpr, limit: TirExpr | None) -> None:
    """A vector of sums, divided by that of the row's exponentials and through what is behind it, to the output."""
    chain, context = context.chain, context.at(i=row, e=e)
    reciprocal = bound(tirx.Broadcast(bound(context.room["total"][local]), context.lanes))
    quotient = bound(value * reciprocal)
    if chain.is_guarded:
        # Whatever stands at the values of a row that is hidden whole.
        nothing = context.vectors.zero()
        quotient = bound(tirx.Select(tirx.EQ(reciprocal, nothing), nothing, quotient))
    result = bound(context.value(chain.out, quotient, "e", limit))
    *outer, last = (context.index[axis] for axis in chain.out_axes)
    (output,) = context.task.workload.outputs
    if output.dtype != DTYPE:
        result = stored(bound(cast(result, output.dtype)), output.dtype)
    context.vectors.store(context.function.buffers[output.name], result, outer, last, limit)
