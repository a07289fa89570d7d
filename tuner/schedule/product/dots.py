"""Products of rows with rows, ``out[m, n] = sum_k left[m, k] * right[n, k]``, where nothing is packed.

Vectors run along k, so both operands are read as they lie, and each sum is added up across its vector at the end. That
costs more for each element of the output than packing does for many rows, and far less for few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.epilogue import through_epilogue
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import DTYPE

Place = Callable[[TirExpr], tuple[TirExpr, tuple[TirExpr, ...]]]


def dots(
    context: EmitContext, tiles: tuple[TirExpr, TirExpr], panels: tuple[TirExpr, TirExpr], is_last: TirExpr
) -> None:
    """Tiles of ``mr`` rows by ``nv`` columns; surplus ones repeat the last valid ones and are not stored."""
    mr, nv = context.kernel["mr"], context.kernel["nv"]
    m, n = context.extent["m"], context.extent["n"]
    # The last share has the ragged rest of the rows, as one more tile.
    rest = tirx.Select(is_last, tirx.floordiv(m + i64(mr - 1), i64(mr)) - tirx.floordiv(m, i64(mr)), i64(0))
    with I.serial(tiles[0], tiles[1] + rest) as tile:
        rows = [tile * i64(mr) + i64(r) for r in range(mr)]
        with I.serial(*panels) as panel:
            _Dots(context, rows, [panel * i64(nv) + i64(c) for c in range(nv)]).emit()
        if context.result.epilogue:
            _through_epilogue(context, tile * i64(mr), (panels[0] * i64(nv), tirx.min(panels[1] * i64(nv), n)))


class _Dots:
    """One tile."""

    def __init__(self, context: EmitContext, rows: list[TirExpr], columns: list[TirExpr]) -> None:
        self.context, self.vectors = context, context.vectors
        self.rows, self.columns = rows, columns
        self.m, self.n, self.k = (context.extent[axis] for axis in "mnk")
        self.acc = [[I.alloc_buffer((self.vectors.lanes,), DTYPE) for _ in columns] for _ in rows]

    def emit(self) -> None:
        lanes = self.vectors.lanes
        for accumulator in (vector for line in self.acc for vector in line):
            I.buffer_store(accumulator, self.vectors.zero(), [self.vectors.ramp(0)])
        whole = tirx.floordiv(self.k, i64(lanes))
        with I.serial(i64(0), whole) as step:
            self._step(step * i64(lanes), None)
        with I.If(whole * i64(lanes) < self.k), I.Then():
            self._step(whole * i64(lanes), self.k)
        for row, line in zip(self.rows, self.acc, strict=True):
            for column, accumulator in zip(self.columns, line, strict=True):
                with I.If(tirx.And(row < self.m, column < self.n)), I.Then():
                    total = self.vectors.total(accumulator[self.vectors.ramp(0)])
                    buffer, place = self.context.result.row(self.context, row)
                    I.buffer_store(buffer, total, [*place, column])

    def _step(self, p: TirExpr, limit: TirExpr | None) -> None:
        words = self.context.words
        right = [
            self._load(partial(self.context.right.step, self.context), column, self.n, p, limit, words.right)
            for column in self.columns
        ]
        for row, line in zip(self.rows, self.acc, strict=True):
            value = self._load(partial(self.context.left.row, self.context), row, self.m, p, limit, words.left)
            for accumulator, column in zip(line, right, strict=True):
                total = accumulator[self.vectors.ramp(0)] + value * column
                I.buffer_store(accumulator, total, [self.vectors.ramp(0)])

    def _load(
        self, along_k: Place, index: TirExpr, extent: TirExpr, p: TirExpr, limit: TirExpr | None, dtype: str
    ) -> TirExpr:
        buffer, place = along_k(tirx.min(index, extent - i64(1)))
        return I.Bind(self.context.words.element(self.vectors.load(buffer, place, p, limit), dtype))


def _through_epilogue(context: EmitContext, row: TirExpr, columns: tuple[TirExpr, TirExpr]) -> None:
    """The sums of a tile's rows once more, while they are in L1."""
    vectors = context.vectors
    height = tirx.min(i64(context.kernel["mr"]), context.extent["m"] - row)
    first, last = columns
    count = tirx.floordiv(last - first + i64(vectors.lanes - 1), i64(vectors.lanes))
    with I.serial(i64(0), height) as r, I.serial(i64(0), count) as v:
        column = I.Bind(first + v * i64(vectors.lanes))
        buffer, place = context.result.row(context, row + r)
        value = vectors.load(buffer, place, column, last)
        value = through_epilogue(context, value, row + r, column, last)
        vectors.store(buffer, value, place, column, last)
