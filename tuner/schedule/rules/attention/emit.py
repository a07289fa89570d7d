"""TensorIR for attention, built directly. The loop nest is

    for t in parallel(threads):                   a contiguous share of (batch, block of rows)
      for b in batch:
        [pack k]                                  pack=1: panels of [d, nr], which stay in L2
        for block in blocks of rows * mr rows:
          for columns in blocks of cols panels:   cols=0: all of them at once
            for panel, for tile:                  scores of mr rows by nr columns
            for row:                              maximum, exponentials, sum
            for tile, for panel of e:             exponentials times v: mr rows by ev vectors
          [the output from the sums]              only behind several blocks of columns

Columns that the bounds of a mask hide from every row of a tile are neither computed nor read.

Where there are several blocks of columns, what was summed before is scaled from the old maximum to the new one (online
softmax: Milakov and Gimelshein 2018, section 3; FlashAttention, algorithm 1). A block whose columns are all hidden has
the maximum -inf; 0 stands in its place, so that the exponentials are 0 and not those of -inf + inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tuner.schedule.loops.shares import Share, each_thread
from tuner.schedule.product.product import ceil_div
from tuner.schedule.rules.attention.context import Context, Tile
from tuner.schedule.rules.attention.packing import pack_keys, pack_words_of_keys, pack_words_of_values
from tuner.schedule.rules.attention.ranges import fill_ranges, range_of_rows, with_positions
from tuner.schedule.rules.attention.tile import (
    is_multiple,
    scores_in_place,
    scores_of_panel,
    values,
    write_rows,
)  # fmt: skip
from tuner.schedule.rules.attention.units import (
    fill_weights,
    in_unit,
    pack_queries,
    scale_sums,
    scores_in_unit,
    values_in_unit,
)  # fmt: skip
from tuner.schedule.rules.attention.words import using
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, combined
from tuner.schedule.vector.dtypes import constant, stored
from tuner.schedule.vector.elementary import exp
from tuner.schedule.vector.memory import DTYPE

LOWEST = -3.4028234663852886e38
"""The lowest finite float32."""


def write(context: Context) -> None:
    """The body of a kernel."""
    with with_positions(context) as own, using(context.scored, context.mixing):
        _shares(own)


def _shares(context: Context) -> None:
    """Each thread has a contiguous share of the blocks of rows of the whole batch."""
    threads, batch = context.task.threads, context.chain.batch
    total = blocks = ceil_div(context.extent["i"], context.height)
    if threads == 1:
        with context.allocated() as own, in_unit(context), ExitStack() as stack:
            index = {axis: stack.enter_context(I.serial(i64(0), context.extent[axis])) for axis in batch}
            _rows(own.at(**index), i64(0), blocks)
        return
    for axis in batch:
        total = total * context.extent[axis]
    with each_thread(threads) as thread, context.allocated() as own, in_unit(context):
        first, end = (I.Bind(tirx.floordiv(total * each, i64(threads))) for each in (thread, thread + i64(1)))
        # Extents may be 0, and no loop guards divisions that are moved out of it.
        size = I.Bind(tirx.max(blocks, i64(1)))
        with I.serial(tirx.floordiv(first, size), tirx.floordiv(end + size - i64(1), size)) as number:
            index, rest = {}, number
            for axis in reversed(batch):
                extent = I.Bind(tirx.max(context.extent[axis], i64(1)))
                index[axis], rest = I.Bind(tirx.floormod(rest, extent)), I.Bind(tirx.floordiv(rest, extent))
            start, stop = i64(0), i64(1)
            # One block not by the general bounds: TVM fails over conditions in which a variable is taken from itself.
            if not (isinstance(blocks, tirx.IntImm) and int(blocks) == 1):
                start, stop = I.Bind(tirx.max(first - number * size, i64(0))), tirx.min(end - number * size, size)
            _rows(own.at(**index), start, stop)


# -- blocks -----------------------------------------------------------------------------------------------------------
def _rows(context: Context, first: TirExpr, end: TirExpr) -> None:
    height, size = i64(context.height), context.extent["i"]
    if context.kernel["pack"]:
        with I.If(first < end), I.Then():
            last = tirx.min(end * height, size) - i64(1)
            share = range_of_rows if context.has_limits else Context.visible
            columns = share(context, first * height, last)
            (pack_words_of_keys if context.scored else pack_keys)(context, columns)
            if context.mixing:
                pack_words_of_values(context, columns)
    with I.serial(first, end) as block:
        row = I.Bind(block * height)
        rows = I.Bind(tirx.min(height, size - row))
        if context.has_limits:
            fill_ranges(context, row, rows)
            columns = context.range_at(context.range_places()[1])
        else:
            columns = context.visible(row, row + rows - i64(1))
        if context.unit:
            pack_queries(context, row, rows)
        (_online if context.kernel["cols"] else _columns)(context, row, rows, columns)


def _online(context: Context, row: TirExpr, rows: TirExpr, columns: Share) -> None:
    """All rows of a block over one block of columns after the other."""
    room, vectors, lanes, width = context.room, context.vectors, context.lanes, context.kernel["cols"] * context.nr
    with I.serial(i64(0), rows) as local:
        I.buffer_store(room["top"], constant(-math.inf, DTYPE, 1), [local])
        I.buffer_store(room["total"], constant(0, DTYPE, 1), [local])
        with I.serial(i64(0), ceil_div(context.extent["e"], lanes)) as v:
            I.buffer_store(room["mixed"], vectors.zero(), [local, vectors.ramp(v * i64(lanes))])
    with I.serial(i64(0), ceil_div(columns[1] - columns[0], width)) as block:
        start = I.Bind(columns[0] + block * i64(width))
        _columns(context, row, rows, (start, I.Bind(tirx.min(start + i64(width), columns[1]))))
    _invert_totals(context, rows)
    write_rows(context, row, rows)


def _columns(context: Context, row: TirExpr, rows: TirExpr, columns: Share) -> None:
    _scores(context, row, rows, columns)
    mr = context.kernel["mr"]
    # One piece of code for tiles of every height.
    with I.serial(i64(0), ceil_div(rows, mr)) as number:
        local = I.Bind(number * i64(mr))
        tile = Tile(row + local, local, mr, I.Bind(tirx.min(i64(mr), rows - local)))
        with _needed(context, tile, columns) as own, I.serial(i64(0), tile.count) as each:
            _Row(context.at(i=tile.row + each), local + each, *own, columns[0]).emit()
    if not context.kernel["cols"]:
        _invert_totals(context, rows)
    for tile in _tiles(context, row, rows):
        with _needed(context, tile, columns) as own:
            (values_in_unit if context.unit else values)(context, tile, own, columns[0])
    if context.unit and not context.kernel["cols"]:
        write_rows(context, row, rows)


def _scores(context: Context, row: TirExpr, rows: TirExpr, columns: Share) -> None:
    """Products for ``columns`` of all tiles, panel by panel: a panel stays in L1 while the tiles go by."""
    packed = scores_in_unit if context.unit else scores_of_panel
    scores = packed if context.kernel["pack"] else scores_in_place
    with I.serial(tirx.floordiv(columns[0], i64(context.nr)), ceil_div(columns[1], context.nr)) as panel:
        column = panel * i64(context.nr)
        for tile in _tiles(context, row, rows):
            with ExitStack() as stack:
                if context.is_bounded:
                    start, stop = context.seen(tile)
                    stack.enter_context(I.If(tirx.And(start <= column, column < stop)))
                    stack.enter_context(I.Then())
                scores(context, tile, panel, column - columns[0])


def _tiles(context: Context, row: TirExpr, rows: TirExpr) -> Iterator[Tile]:
    """The tiles of ``rows`` rows from ``row`` on: whole ones, then the ragged rest, exactly (``tail``) or padded."""
    mr, size = context.kernel["mr"], context.extent["i"]
    whole = I.Bind(tirx.floordiv(rows, i64(mr)))
    if not (isinstance(size, tirx.IntImm) and int(size) < mr):
        with I.serial(i64(0), whole) as number:
            local = I.Bind(number * i64(mr))
            yield Tile(row + local, local, mr)
    if is_multiple(size, mr):
        return
    local = I.Bind(whole * i64(mr))
    rest = I.Bind(rows - local)
    if not context.kernel["tail"]:
        with I.If(rest > i64(0)), I.Then():
            yield Tile(row + local, local, mr, rest)
        return
    for height in range(1, mr):
        with I.If(rest == i64(height)), I.Then():
            yield Tile(row + local, local, height)


@contextmanager
def _needed(context: Context, tile: Tile, columns: Share) -> Iterator[Share]:
    """The columns of a block that any row of a tile sees. What is written inside runs where there are any."""
    if not context.is_bounded:
        yield columns
        return
    with ExitStack() as stack:
        if context.kernel["cols"]:
            # No block is empty. The columns that are needed would ask that again: TVM makes ``x - x < 16`` of it, and
            # divides by the coefficient of x.
            first, end = context.seen(tile)
            is_seen = columns[0] < end
            if context.has_lower_bound:
                is_seen = tirx.And(is_seen, tirx.And(first < end, first < columns[1]))
            stack.enter_context(I.If(is_seen))
            stack.enter_context(I.Then())
        first, end = context.seen(tile)
        first = I.Bind(tirx.max(tirx.min(first, columns[1]), columns[0])) if context.has_lower_bound else columns[0]
        yield first, I.Bind(tirx.max(tirx.min(end, columns[1]), first))


def _invert_totals(context: Context, rows: TirExpr) -> None:
    """Sums of exponentials as their reciprocals: each is 1 or more, or 0 where every column is hidden."""
    with I.serial(i64(0), rows) as local:
        total = bound(context.room["total"][local])
        reciprocal, nothing = constant(1, DTYPE, 1) / total, constant(0, DTYPE, 1)
        if context.chain.is_guarded:
            # Not "total != 0": of NaN that is false in TVM, and a sum that is NaN is none of nothing.
            reciprocal = tirx.Select(tirx.EQ(total, nothing), nothing, bound(reciprocal))
        elif context.chain.is_zero_of_nothing:
            # A sum over nothing is 0, whatever it is a sum of.
            reciprocal = tirx.Select(context.extent["j"] > i64(0), bound(reciprocal), nothing)
        I.buffer_store(context.room["total"], reciprocal, [local])


# -- the softmax of a row ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Row:
    """Scores of row i of ``context`` become exponentials, with their maximum and sum. It is row ``local`` of a block;
    columns are ``first`` to ``end``, of a block from ``start`` on."""

    context: Context
    local: TirExpr
    first: TirExpr
    end: TirExpr
    start: TirExpr

    def emit(self) -> None:
        room, top = self.context.room, self._top()
        if self.context.kernel["cols"]:
            old = bound(room["top"][self.local])
            top = bound(tirx.max(old, top))
            safe = _safe(top)
            factor = bound(exp(combined("-", old, safe)))
            I.buffer_store(room["top"], top, [self.local])
            I.buffer_store(room["factor"], factor, [self.local])
            if self.context.unit:
                scale_sums(self.context, self.local)
            total = bound(room["total"][self.local] * factor) + self._exponentials(safe)
        else:
            total = self._exponentials(_safe(top) if self.context.chain.is_guarded else top)
        I.buffer_store(room["total"], total, [self.local])

    def _top(self) -> TirExpr:
        """The scores as the program has them, in the place of the products; their maximum.

        A maximum that loses a NaN does no harm: the exponential of NaN is NaN, and so is every sum with it.
        """
        context, lanes, mask = self.context, self.context.lanes, self.context.chain.mask
        own, outside = self._own(), mask.inside if context.has_limits else mask.score
        top, hidden = I.alloc_buffer((lanes,), DTYPE), constant(-math.inf, DTYPE, lanes)
        I.buffer_store(top, hidden, [context.every])
        for first, end, is_inside in self._parts(own):
            with I.serial(first, end) as number:
                column = I.Bind(number * i64(lanes))
                place = self._place(column)
                product = bound(context.room["scores"][place])
                score, limit = (mask.inside, None) if is_inside else (outside, context.extent["j"])
                value = bound(context.at(j=column).value(score, product, "j", limit))
                if not is_inside:
                    value = bound(tirx.Select(self._is_column(column, own), value, hidden))
                I.buffer_store(context.room["scores"], value, list(place))
                I.buffer_store(top, tirx.max(top[context.every], value), [context.every])
        return bound(context.vectors.across(top[context.every], tirx.max))

    def _own(self) -> Share | None:
        """Where data says what the row sees: that, of the columns that are needed."""
        if not self.context.has_limits:
            return None
        first, end = (self.context.room[name][self.local] for name in ("firsts", "ends"))
        first, end = (I.Bind(tirx.max(tirx.min(I.Bind(each), self.end), self.first)) for each in (first, end))
        return first, end

    def _is_column(self, column: TirExpr, own: Share | None) -> TirExpr:
        """Which columns of a vector there are; of those that data hides there are none."""
        lanes, every = self.context.lanes, tirx.Ramp(column, i64(1), self.context.lanes)
        if own is None:
            return every < tirx.Broadcast(self.end, lanes)
        return tirx.And(tirx.Broadcast(own[0], lanes) <= every, every < tirx.Broadcast(own[1], lanes))

    def _parts(self, own: Share | None) -> list[tuple[TirExpr, TirExpr, bool]]:
        """Vectors, and whether all of their columns are visible."""
        context, lanes, row, end = self.context, self.context.lanes, self.context.index["i"], self.end
        whole, last = tirx.floordiv(self.first, i64(lanes)), I.Bind(ceil_div(self.end, lanes))
        if own is not None:
            end = own[1]
        elif context.bounds:
            end = tirx.max(tirx.min(context.bound(row, is_upper=True), end), self.first)
        elif is_multiple(context.extent["j"], lanes):
            return [(whole, last, True)]
        if not context.has_lower_bound:
            inside = I.Bind(tirx.floordiv(end, i64(lanes)))
            return [(whole, inside, True), (inside, last, False)]
        if own is not None:
            first = own[0]
        else:
            first = tirx.max(tirx.min(context.bound(row, is_upper=False), self.end), self.first)
        visible = I.Bind(ceil_div(first, lanes))
        inside = I.Bind(tirx.max(tirx.floordiv(end, i64(lanes)), visible))
        return [(whole, visible, False), (visible, inside, True), (inside, last, False)]

    def _exponentials(self, top: TirExpr) -> TirExpr:
        """exp(score - top) in the place of the scores; their sum."""
        context, lanes, scores = self.context, self.context.lanes, self.context.room["scores"]
        total = I.alloc_buffer((lanes,), DTYPE)
        I.buffer_store(total, context.vectors.zero(), [context.every])
        tops = bound(tirx.Broadcast(top, lanes))
        with I.serial(tirx.floordiv(self.first, i64(lanes)), ceil_div(self.end, lanes)) as number:
            place = self._place(number * i64(lanes))
            value = bound(exp(combined("-", bound(scores[place]), tops)))
            if context.mixing:
                weight = stored(value, context.mixing.left)
                I.buffer_store(context.room["weights"], weight, list(place))
            else:
                I.buffer_store(scores, value, list(place))
            I.buffer_store(total, total[context.every] + value, [context.every])
        if context.unit:
            fill_weights(context, self.local, ceil_div(self.end, lanes) * i64(lanes) - self.start)
        return context.vectors.total(total[context.every])

    def _place(self, column: TirExpr) -> tuple[TirExpr, TirExpr]:
        return self.local, self.context.vectors.ramp(column - self.start)


def _safe(top: TirExpr) -> TirExpr:
    """0 in the place of -inf: the exponentials of what is hidden are 0 then, also where all of it is."""
    return bound(tirx.Select(top < constant(LOWEST, DTYPE, 1), constant(0, DTYPE, 1), top))
