"""Totals of a register tile in the tile registers of a matrix unit.

Rows are packed at the call and panels before they are used, both filled up with zeros to whole multiplications. Totals
go through memory, a few lines of L1, on their way to the output and back. Where groups of steps share a factor, sums of
a group do, and are added to totals that stand behind them in memory. Between chunks of k totals of a block of rows stay
in memory of their own where that is not too large, so that their tiles go and come as they are. What becomes of the
totals of a tile is done while the next one is multiplied (waiting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.atom import registers_of
from tuner.schedule.product.axes import keeps_totals
from tuner.schedule.product.context import EmitContext, Panel, Run
from tuner.schedule.product.product import Late, ceil_div
from tuner.schedule.product.readers import PackedRows, PackedSlice, PanelReader, RowReader
from tuner.schedule.product.tile import Tile, Use
from tuner.schedule.product.waiting import Waiting, can_wait
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, cast, constant
from tuner.schedule.vector.memory import bytes_of, workspace


class MatrixTile(Tile):
    """``down`` by ``across`` registers of totals, then one of the left operand for each row of them, then those of the
    right operand, which take turns."""

    is_unrolled = False

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.atom.unit is not None and self.context.totals is not None
        self.unit, self.totals = self.atom.unit, self.context.totals
        self.down, self.across, least = registers_of(self.atom, self.lanes, self.height, self.panel.vectors)
        self.spare = min(self.unit.registers - least + 1, self.across)

    def _each_total(self) -> Iterator[tuple[int, TirExpr, TirExpr]]:
        """Each register of totals, where it is in memory, and the bytes from a row to the next there."""
        for i in range(self.down):
            for j in range(self.across):
                row, column = self._corner
                at = self.totals[row + i64(i * self.atom.rows), column + i64(j * self.unit.columns)]
                yield i * self.across + j, tirx.address_of(at), _stride(self.totals)

    @property
    def _corner(self) -> tuple[TirExpr, TirExpr]:
        """Where the registers' first total is in memory."""
        if self.context.kept is None:
            return self._half * i64(self.kernel["mr"]), i64(0)
        assert isinstance(self.rows, PackedRows)
        return self.row - self.rows.row, self.panel.column - self.context.kept

    @property
    def _half(self) -> TirExpr:
        return i64(0) if self.context.waiting is None else self.context.waiting.half

    def clear(self) -> None:
        if self.late is None:
            self._clear_registers()
            return
        with I.serial(i64(0), self.count) as r:
            for v in range(self.panel.vectors):
                nothing = constant(0, self.atom.total, self.lanes)
                I.buffer_store(self.totals, nothing, self._total(r, v))

    def _clear_registers(self) -> None:
        for register, *_ in self._each_total():
            I.evaluate(self.unit.zero(register))

    def _total(self, r: TirExpr, v: int) -> list[TirExpr]:
        """Where vector ``v`` of a row of the totals is in memory."""
        row, column = self._corner
        return [row + r + i64(_first(self.context, self.late)), self.vectors.ramp(column + i64(v * self.lanes))]

    def resume(self) -> None:
        if self.context.kept is None:
            with I.serial(i64(0), self.count) as r:
                for v in range(self.panel.vectors):
                    I.buffer_store(self.totals, self.partial(r, i64(v)), self._total(r, v))
        for register, pointer, stride in self._each_total():
            I.evaluate(self.unit.load(register, pointer, stride))

    def _store(self) -> None:
        waiting = self.context.waiting
        if waiting is None or self.panel.limit is not None:
            super()._store()
            return
        waiting.put(self.count, self.row, self.panel.column)

    def each(self, use: Use) -> None:
        self._each_of(i64(0), self.count, use)

    def _each_of(self, first: TirExpr, last: TirExpr, use: Use) -> None:
        with I.serial(first, last) as r:
            for v in range(self.panel.vectors):
                use(as_bits(I.Bind(self.totals[tuple(self._total(r, v))]), self.total), r, i64(v))

    def reduce(self, ordinal: TirExpr) -> None:
        assert isinstance(self.rows, PackedRows)
        first, late = I.Bind(self.row - self.rows.row), self.late
        if late is None:
            self._multiply(first, Run(i64(0), self.chunk.length), ordinal)
        else:
            self.in_groups(late, partial(self._group, late, first))

    def _group(self, late: Late, first: TirExpr, run: Run) -> None:
        """The totals after the steps of ``run``, which share a factor."""
        self._clear_registers()
        self._multiply(first, run)
        step = self.chunk.first + run.begin
        factors = [I.Bind(late.factor(self.panel, step, v)) for v in range(self.panel.vectors)]
        with I.serial(i64(0), self.count) as r:
            for v, factor in enumerate(factors):
                place, sums = self._total(r, v), self.totals[r, self.vectors.ramp(i64(v * self.lanes))]
                if self.total != self.atom.total:
                    sums = cast(bound(sums), self.total)
                total = as_bits(self.totals[tuple(place)], self.total) + sums * factor
                I.buffer_store(self.totals, as_bits(total, self.atom.total), place)

    def _multiply(self, first: TirExpr, run: Run, ordinal: TirExpr = None) -> None:
        """Add the products of the steps of a run to the registers of totals, and store these. ``first``: of the tile's
        rows in the packed ones. ``ordinal``: see ``emit``; where it is None nothing is asked for."""
        rows, panel, chunk, unit = self.rows, self.columns, self.chunk, self.unit
        assert isinstance(rows, PackedRows) and isinstance(panel, PackedSlice)
        steps, lefts = self.atom.steps, self.down * self.across
        word = i64(self.context.left.word_elements(self.context))
        turns = ceil_div(run.length, steps)
        finish_some = self._finishing(turns)
        with I.serial(i64(0), turns) as turn:
            step = I.Bind(run.begin + turn * i64(steps))
            for i in range(self.down):
                at = rows.buffer[first + i64(i * self.atom.rows), step * word]
                I.evaluate(unit.load(lefts + i, tirx.address_of(at), _stride(rows.buffer)))
            for j in range(self.across):
                right, (v, columns) = lefts + self.down + j % self.spare, divmod(j * unit.columns, self.lanes)
                index, begin = panel.place(v, self.words.width)
                column = i64(begin + columns * self.atom.group)
                at = panel.buffer[index, chunk.first - panel.first + step, column]
                I.evaluate(unit.load(right, tirx.address_of(at), _stride(panel.buffer)))
                for i in range(self.down):
                    I.evaluate(unit.multiply(i * self.across + j, lefts + i, right))
            if ordinal is not None and self.kernel["ahead"]:
                self._ask_ahead(ordinal, turn)
            finish_some(turn)
        for register, pointer, stride in self._each_total():
            I.evaluate(unit.store(register, pointer, stride))

    def _finishing(self, turns: TirExpr) -> Callable[[TirExpr], None]:
        """Writes a multiplication's share, of so many, in what is left to do for the tile that waits."""
        waiting, height = self.context.waiting, self.kernel["mr"]
        if waiting is None or self.panel.limit is not None:
            return lambda turn: None
        each = bound(tirx.floordiv(turns + i64(height - 1), turns))
        tile = WaitingTile.of(self.context, waiting, self.rows)

        def finish(turn: TirExpr) -> None:
            first = I.Bind(turn * each)
            tile.finish(first, tirx.min(first + each, waiting.rows))

        return finish

    def _ask_ahead(self, ordinal: TirExpr, turn: TirExpr) -> None:
        """For a multiplication's share of the next panel."""
        of_turn = self.atom.steps // self.kernel["ahead"]
        before = (ordinal * ceil_div(self.chunk.length, self.atom.steps) + turn) * i64(of_turn)
        for number in range(of_turn):
            self.columns.prefetch_next(self, before + i64(number))


class WaitingTile(MatrixTile):
    """The tile whose totals wait."""

    @staticmethod
    def of(context: EmitContext, waiting: Waiting, rows: RowReader) -> WaitingTile:
        """``rows``: of the tile at hand, which is in the same block."""
        row, column = waiting.corner
        panel = Panel(I.Bind(column), None, context.kernel["nv"], i64(0), PanelReader())
        return WaitingTile(context, panel, context.steps, rows, I.Bind(row), context.kernel["mr"])

    @property
    def _half(self) -> TirExpr:
        return i64(1) - super()._half

    def finish(self, first: TirExpr, last: TirExpr) -> None:
        """These rows go through the epilogue, and to where results are written."""
        self._each_of(first, last, lambda value, r, v: self._write(r, v, self._result(value, r, v)))


def finish_waiting(context: EmitContext, rows: RowReader) -> None:
    """No totals wait after this, of a block whose rows are read by ``rows``."""
    if context.waiting is not None:
        WaitingTile.of(context, context.waiting, rows).finish(i64(0), context.waiting.rows)
        context.waiting.clear()


def _stride(buffer: TirExpr) -> TirExpr:
    return buffer.shape[-1] * i64(bytes_of(str(buffer.dtype)))


@contextmanager
def with_totals(context: EmitContext, panels: Share) -> Iterator[EmitContext]:
    """The context of a thread's part of one product, with memory for totals where they are in a matrix unit."""
    atom, values, n = context.words.atom, dict(context.kernel.values), context.extent["n"]
    if atom.unit is None:
        yield context
        return
    waiting = Waiting.begin() if can_wait(context) else None
    rows, columns, kept = values["mr"] + _first(context, context.right.late(context)), i64(context.nr), None
    if waiting is not None:
        rows *= 2
    if keeps_totals(values, atom, int(n) if isinstance(n, tirx.IntImm) else None, context.task.known_target.hardware):
        # The ragged rest of the rows joins the last block.
        rows, columns = (values["mb"] + 1) * values["mr"], (panels[1] - panels[0]) * i64(context.nr)
        kept = panels[0] * i64(context.nr)
    with workspace((i64(rows), columns), atom.total) as totals:
        yield replace(context, totals=totals, kept=kept, waiting=waiting)


def _first(context: EmitContext, late: Late | None) -> int:
    """The first row of totals in memory: behind the sums of a group, where these are multiplied by a factor."""
    return 0 if late is None else context.kernel["mr"]
