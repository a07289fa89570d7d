"""Both products of an attention: scores, and exponentials times v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.schedule.rules.attention.tile import Accumulators, Frame, Tile, unrolled, up, when
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, stored
from tuner.schedule.vector.memory import DTYPE


def pack_keys(frame: Frame, first: TirExpr, end: TirExpr) -> None:
    """Panels ``first`` to ``end`` of k as [d, nr] each; surplus columns repeat the last one, or are zero."""
    with I.serial(first, end) as panel, I.serial(i64(0), i64(frame.kernel["nv"])) as v:
        column = I.Bind(panel * i64(frame.nr) + v * i64(frame.lanes))
        (_copy if frame.chain.j_is_last else _transpose)(frame, panel, column, v)


def _copy(frame: Frame, panel: TirExpr, column: TirExpr, v: TirExpr) -> None:
    with I.serial(i64(0), frame.extent["d"]) as step:
        value = frame.vector(frame.chain.k, frame.extent["j"], j=column, d=step)
        I.buffer_store(frame.room.keys, value, [panel, step, frame.vectors.ramp(v * i64(frame.lanes))])


def _transpose(frame: Frame, panel: TirExpr, column: TirExpr, v: TirExpr) -> None:
    """Squares of lanes x lanes elements, turned over in registers; the last one reads no further than d."""
    lanes, d = frame.lanes, frame.extent["d"]
    whole = tirx.floordiv(d, i64(lanes))

    def square(step: TirExpr, limit: TirExpr | None) -> None:
        at = [tirx.min(column + i64(lane), frame.extent["j"] - i64(1)) for lane in range(lanes)]
        rows = [I.Bind(frame.vector(frame.chain.k, limit, j=each, d=step)) for each in at]
        for lane, value in enumerate(frame.vectors.transposed(rows)):
            place = [panel, step + i64(lane), frame.vectors.ramp(v * i64(lanes))]
            I.buffer_store(frame.room.keys, value, place)

    with I.serial(i64(0), whole) as number:
        square(number * i64(lanes), None)
    if not (isinstance(d, tirx.IntImm) and int(d) % lanes == 0):
        with when(whole * i64(lanes) < d):
            square(whole * i64(lanes), d)


Range = Callable[[Tile], tuple[TirExpr, TirExpr]]
"""The columns that a tile sees: the first, and the first past the last."""


def scores(frame: Frame, columns: tuple[TirExpr, TirExpr], over_tiles: Callable[[Any], None], seen: Range) -> None:
    """Products for ``columns`` of all tiles, panel by panel: a panel stays in L1 while the tiles go by."""
    first, end = columns
    with I.serial(tirx.floordiv(first, i64(frame.nr)), up(end, frame.nr)) as panel:
        column = panel * i64(frame.nr)

        def use(tile: Tile) -> None:
            write = _products if frame.kernel["pack"] else _dots
            if not frame.chain.mask.bounds:
                write(frame, tile, panel, column - first)
                return
            start, stop = seen(tile)
            with when(tirx.And(start <= column, column < stop)):
                write(frame, tile, panel, column - first)

        over_tiles(use)


def _products(frame: Frame, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """A register tile of a packed panel."""
    nv, lanes = frame.kernel["nv"], frame.lanes
    sums = Accumulators(frame, tile.height, nv)
    sums.clear()
    rows = [tile.row + i64(number) for number in range(tile.height)]
    if tile.valid is not None:
        rows = [tirx.min(row, frame.extent["i"] - i64(1)) for row in rows]

    def step(at: TirExpr) -> None:
        scalars = [frame.element(frame.chain.q, i=row, d=at) for row in rows]
        ramps = [frame.vectors.ramp(i64(v * lanes)) for v in range(nv)]
        sums.add_products(scalars, [frame.room.keys[panel, at, ramp] for ramp in ramps])

    unrolled(i64(0), frame.extent["d"], frame.kernel["ku"], step)
    for row in range(tile.height):
        for v in range(nv):
            place = [tile.local + i64(row), frame.vectors.ramp(column + i64(v * lanes))]
            I.buffer_store(frame.room.scores, sums.get(row, v), place)


def _dots(frame: Frame, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """As many columns as a vector has lanes, each by vectors along d; for few rows, which packing does not pay for."""
    lanes, d = frame.lanes, frame.extent["d"]
    at = [tirx.min(panel * i64(lanes) + i64(lane), frame.extent["j"] - i64(1)) for lane in range(lanes)]
    whole = tirx.floordiv(d, i64(lanes))
    with I.serial(i64(0), tile.count) as row:
        sums = Accumulators(frame, lanes, 1)
        sums.clear()

        def step(start: TirExpr, limit: TirExpr | None) -> None:
            left = I.Bind(frame.vector(frame.chain.q, limit, i=tile.row + row, d=start))
            for lane, each in enumerate(at):
                right = frame.vector(frame.chain.k, limit, j=each, d=start)
                sums.set(lane, 0, sums.get(lane, 0) + left * right)

        with I.serial(i64(0), whole) as number:
            step(number * i64(lanes), None)
        if not (isinstance(d, tirx.IntImm) and int(d) % lanes == 0):
            with when(whole * i64(lanes) < d):
                step(whole * i64(lanes), d)
        value = frame.vectors.totals([sums.get(lane, 0) for lane in range(lanes)])
        I.buffer_store(frame.room.scores, value, [tile.local + row, frame.vectors.ramp(column)])


def values(frame: Frame, tile: Tile, columns: tuple[TirExpr, TirExpr], start: TirExpr) -> None:
    """Sums over ``columns`` of a block that starts at ``start``: to the output, or onto those of earlier blocks."""
    over_panels(frame, lambda e, vectors, limit: _Sums(frame, tile, e, vectors, limit).emit(columns, start))


def over_panels(frame: Frame, use: Callable[[TirExpr, int, TirExpr | None], None]) -> None:
    """Panels of ``ev`` vectors along e, each with the limit of its loads where it is ragged."""
    lanes, ev, e = frame.lanes, frame.kernel["ev"], frame.extent["e"]
    width = ev * lanes
    whole = I.Bind(tirx.floordiv(e, i64(width)))
    if not (isinstance(e, tirx.IntImm) and int(e) < width):
        with I.serial(i64(0), whole) as panel:
            use(I.Bind(panel * i64(width)), ev, None)
    if not isinstance(e, tirx.IntImm):
        with when(whole * i64(width) < e):
            use(I.Bind(whole * i64(width)), ev, e)
    elif rest := int(e) % width:
        use(i64(int(e) - rest), -(-rest // lanes), e if rest % lanes else None)


class _Sums:
    """One register tile: its rows by ``vectors`` vectors of the output from ``e`` on."""

    def __init__(self, frame: Frame, tile: Tile, e: TirExpr, vectors: int, limit: TirExpr | None) -> None:
        self.frame, self.tile, self.e, self.vectors, self.limit = frame, tile, e, vectors, limit
        self.sums = Accumulators(frame, tile.height, vectors)

    def emit(self, columns: tuple[TirExpr, TirExpr], start: TirExpr) -> None:
        self._start()
        unrolled(*columns, self.frame.kernel["ku"], lambda column: self._step(column, start))
        for row in range(self.tile.height):
            with self.tile.existing(row):
                for v in range(self.vectors):
                    self._finish(row, v)

    def _start(self) -> None:
        if not self.frame.is_blocked:
            self.sums.clear()
            return
        for row in range(self.tile.height):
            factor = bound(self.frame.room.factor[self.tile.local + i64(row)])
            for v in range(self.vectors):
                earlier = self.frame.room.mixed[tuple(self._mixed(row, v))]
                self.sums.set(row, v, earlier * tirx.Broadcast(factor, self.frame.lanes))

    def _step(self, column: TirExpr, start: TirExpr) -> None:
        lines = [self.tile.local + i64(row) for row in range(self.tile.height)]
        weights = [self.frame.room.scores[line, column - start] for line in lines]
        v = self.frame.chain.v
        self.sums.add_products(
            weights, [self.frame.vector(v, self.limit, j=column, e=self._e(n)) for n in range(self.vectors)]
        )

    def _finish(self, row: int, v: int) -> None:
        if self.frame.is_blocked:
            I.buffer_store(self.frame.room.mixed, self.sums.get(row, v), self._mixed(row, v))
            return
        local = self.tile.local + i64(row)
        write(self.frame, self.tile.row + i64(row), local, self._e(v), self.sums.get(row, v), self.limit)

    def _mixed(self, row: int, v: int) -> list[TirExpr]:
        return [self.tile.local + i64(row), self.frame.vectors.ramp(self._e(v))]

    def _e(self, v: int) -> TirExpr:
        return self.e + i64(v * self.frame.lanes)


def write(frame: Frame, row: TirExpr, local: TirExpr, e: TirExpr, value: TirExpr, limit: TirExpr | None) -> None:
    """A vector of sums, divided by that of the row's exponentials and through what is behind it, to the output."""
    reciprocal = bound(tirx.Broadcast(bound(frame.room.total[local]), frame.lanes))
    quotient = bound(value * reciprocal)
    if frame.chain.is_guarded:
        # Whatever stands at the values of a row that is hidden whole.
        nothing = frame.vectors.zero()
        quotient = bound(tirx.Select(tirx.EQ(reciprocal, nothing), nothing, quotient))
    result = bound(frame.value(frame.chain.out, quotient, "e", limit, i=row, e=e))
    index = {**frame.index, "i": row, "e": e}
    *outer, last = (index[axis] for axis in frame.chain.out_axes)
    dtype = frame.task.workload.tensors[frame.chain.out_tensor].dtype
    if dtype != DTYPE:
        result = stored(bound(cast(result, dtype)), dtype)
    frame.vectors.store(frame.function.buffers[frame.chain.out_tensor], result, outer, last, limit)


def invert_totals(frame: Frame, first: TirExpr, count: TirExpr) -> None:
    """Sums of exponentials as their reciprocals: each is 1 or more, or 0 where every column is hidden."""
    with I.serial(first, first + count) as local:
        total = bound(frame.room.total[local])
        reciprocal = constant(1, DTYPE, 1) / total
        nothing = constant(0, DTYPE, 1)
        if frame.chain.is_guarded:
            # Not "total != 0": of NaN that is false in TVM, and a sum that is NaN is none of nothing.
            reciprocal = tirx.Select(tirx.EQ(total, nothing), nothing, bound(reciprocal))
        elif frame.chain.is_zero_of_nothing:
            # A sum over nothing is 0, whatever it is a sum of.
            reciprocal = tirx.Select(frame.extent["j"] > i64(0), bound(reciprocal), nothing)
        I.buffer_store(frame.room.total, reciprocal, [local])


def write_rows(frame: Frame, row: TirExpr, rows: TirExpr) -> None:
    """The output of a block of rows, from the sums over all blocks of columns."""
    invert_totals(frame, i64(0), rows)
    with I.serial(i64(0), rows) as local:

        def panel(e: TirExpr, vectors: int, limit: TirExpr | None) -> None:
            for v in range(vectors):
                at = e + i64(v * frame.lanes)
                value = frame.room.mixed[local, frame.vectors.ramp(at)]
                write(frame, row + local, local, at, value, limit)

        over_panels(frame, panel)
