"""The tile of a matrix unit whose totals wait in memory until the next tile is multiplied.

A unit multiplies while vectors have nothing to do, and a core looks a few hundred instructions ahead at most. So what
becomes of totals, an epilogue and stores, would begin when the last multiplication of a tile is done, and the unit
would stand still. Each multiplication of the next tile is followed by some rows of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.schedule.product.context import EmitContext
from tuner.schedule.tir import I, TirExpr, i64, tirx

ROWS, ROW, COLUMN, HALF = range(4)


@dataclass(frozen=True)
class Waiting:
    """``state``, which the loops of a thread read and set: how many rows wait, the first row and the first column of
    them in the results, and which half of the memory for totals the tile at hand has. The other half has those that
    wait, unless all totals of a block are kept."""

    state: TirExpr

    @staticmethod
    def begin() -> Waiting:
        """Nothing waits."""
        waiting = Waiting(I.alloc_buffer((4,), "int64"))
        for item in range(4):
            waiting._set(item, i64(0))
        return waiting

    @property
    def rows(self) -> TirExpr:
        return self.state[i64(ROWS)]

    @property
    def corner(self) -> tuple[TirExpr, TirExpr]:
        return self.state[i64(ROW)], self.state[i64(COLUMN)]

    @property
    def half(self) -> TirExpr:
        """Of the tile at hand."""
        return self.state[i64(HALF)]

    def put(self, rows: TirExpr, row: TirExpr, column: TirExpr) -> None:
        """The totals of the tile at hand wait from here on."""
        for item, value in ((ROWS, rows), (ROW, row), (COLUMN, column), (HALF, i64(1) - self.half)):
            self._set(item, value)

    def clear(self) -> None:
        self._set(ROWS, i64(0))

    def _set(self, item: int, value: TirExpr) -> None:
        I.buffer_store(self.state, value, [i64(item)])


def can_wait(context: EmitContext) -> bool:
    """Whether totals of tiles may wait: there is a multiplication for each tile, and no sums of groups go through
    memory besides."""
    k = context.extent["k"]
    is_long = isinstance(k, tirx.IntImm) and int(k) > 0
    return is_long and context.part is None and context.right.late(context) is None
