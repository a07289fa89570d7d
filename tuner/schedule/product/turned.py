"""A register tile whose results lie along its rows: squares of it are transposed before they are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tuner.schedule.product.context import where
from tuner.schedule.product.operands.turned import TurnedResult
from tuner.schedule.product.tile import is_short, through_epilogue
from tuner.schedule.product.vectors import VectorTile
from tuner.schedule.tir import I, TirExpr, i64
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant

Line = Callable[[TirExpr, TirExpr], None]
"""Takes a vector of a column, and the column."""


class TurnedTile(VectorTile):
    """Totals in vector registers, of results that are written by vectors along m."""

    def _store(self) -> None:
        for first in range(0, self.height, self.lanes):
            rows = range(first, min(self.height, first + self.lanes))
            if is_short(self.context.result.epilogue):
                self._lines(rows, partial(self._finish, first))
                continue
            # Unrolled into every line a long epilogue would be most of a kernel's code.
            self._lines(rows, partial(self._write_line, first))
            with I.serial(i64(0), self.context.columns_in(self.panel)) as number:
                column = bound(self.panel.column + number)
                buffer, place = self._column(column)
                value = self.vectors.load(buffer, place, self._row(first), self._end(first))
                self._finish(first, bound(value), column)

    def _lines(self, rows: range, use: Line) -> None:
        """The columns of the tile, each as a vector of these rows."""
        nothing = constant(0, self.total, self.lanes)
        for v in range(self.panel.vectors):
            square = [bound(self.slots[r][v][self.every]) for r in rows] + [nothing] * (self.lanes - len(rows))
            for lane, line in enumerate(self.vectors.transposed(square)):
                column = self.panel.column + i64(v * self.lanes + lane)
                is_there = None if self.panel.limit is None else column < self.panel.limit
                where(is_there, partial(use, line, column))

    def _finish(self, first: int, value: TirExpr, column: TirExpr) -> None:
        value = through_epilogue(self.context, value, column, self._row(first), self._end(first))
        self._write_line(first, value, column)

    def _write_line(self, first: int, value: TirExpr, column: TirExpr) -> None:
        buffer, place = self._column(column)
        self.vectors.store(buffer, value, place, self._row(first), self._end(first))

    def _column(self, column: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        result = self.context.result
        assert isinstance(result, TurnedResult)
        return result.column(self.context, column)

    def _row(self, first: int) -> TirExpr:
        return self.row + i64(first)

    def _end(self, first: int) -> TirExpr | None:
        """Where the rows of a line end that begins with row ``first``; None where all lanes are valid."""
        if self.valid is not None:
            return self.row + self.count
        return None if self.height - first >= self.lanes else self.row + i64(self.height)
