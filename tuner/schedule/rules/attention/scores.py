"""The first contraction: products of rows of q with k, into the scratch for scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.schedule.rules.attention.frame import Frame, up
from tuner.schedule.rules.attention.tile import Accumulators, Tile, unrolled, when
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx


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
