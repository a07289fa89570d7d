"""Totals of a register tile in vector registers: every step of k is a word of a row times vectors of words."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from tuner.schedule.product.accumulators import Accumulators, Use
from tuner.schedule.product.context import Run
from tuner.schedule.product.operand import Late
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound

if TYPE_CHECKING:
    from tuner.schedule.product.tile import Tile


class VectorAccumulators(Accumulators):
    """A slot for each vector."""

    is_unrolled = True

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile)
        self.context, self.panel, self.kernel, self.words = tile.context, tile.panel, tile.kernel, tile.words
        self.columns, self.rows, self.every = tile.columns, tile.rows, tile.vectors.ramp(0)
        # One buffer of one vector each: larger or `local` ones become a heap workspace, and with a prefetch in the
        # loop every accumulator would be stored at each step.
        self.slots = self._allocated()

    def _allocated(self) -> list[list[TirExpr]]:
        vectors = range(self.panel.vectors)
        return [[I.alloc_buffer((self.tile.lanes,), self.tile.total) for _ in vectors] for _ in range(self.tile.height)]

    # -- before ---------------------------------------------------------------------------------------------------
    def clear(self) -> None:
        rows = self.rows.places(self.tile) if self.words.row_head else [None] * self.tile.height
        for line, row in zip(self.slots, rows, strict=True):
            for v, slot in enumerate(line):
                I.buffer_store(slot, self.words.start(self._head(row, v)), [self.every])

    def _head(self, row: TirExpr | None, v: int) -> TirExpr | None:
        """What stands in front of a row, or of the panel for vector ``v``."""
        if row is None:
            return self.columns.head(self.tile, v)
        buffer, place = self.context.left.row(self.context, row)
        return buffer[(*place, tirx.Ramp(i64(0), i64(1), self.words.atom.group))]

    def resume(self) -> None:
        for r, line in enumerate(self.slots):
            with self.tile.if_valid(r):
                for v, slot in enumerate(line):
                    I.buffer_store(slot, self.tile.partial(i64(r), i64(v)), [self.every])

    # -- the loop over k ------------------------------------------------------------------------------------------
    def reduce(self, ordinal: TirExpr) -> None:
        late = self.context.right.late(self.context)
        if late is not None:
            self._in_groups(late)
            return
        places = self.rows.places(self.tile)
        runs = self.rows.runs(self.tile) or self.columns.runs(self.tile)
        with runs or nullcontext(Run(i64(0), self.tile.chunk.length)) as run:
            own = self.columns
            self.columns = own.in_run(run)
            self._turns(self.rows.in_run(places, run), run, ordinal)
            self.columns = own

    def _turns(self, rows: list[TirExpr], run: Run, ordinal: TirExpr) -> None:
        """The steps of a run, which count from the chunk's first one."""
        unroll, begin, length = self.kernel["ku"], run.begin, run.length
        group = max(unroll, self.kernel["ahead"])
        groups = tirx.floordiv(length, i64(group))
        # Which of the groups of all tiles over this panel the first one here is.
        before = ordinal * tirx.floordiv(self.tile.chunk.length, i64(group)) + tirx.floordiv(begin, i64(group))
        with I.serial(i64(0), groups) as turn:
            with I.serial(i64(0), i64(group // unroll)) as part:
                first = bound(begin + turn * i64(group) + part * i64(unroll))
                for u in range(unroll):
                    self._step(rows, first + i64(u))
            self.columns.prefetch_next(self.tile, before + turn)
        if not (isinstance(length, tirx.IntImm) and int(length) % group == 0):
            # Both bounds without ``begin``: TVM's analyzer fails on an extent that it reads as a minimum of itself.
            with I.serial(groups * i64(group), length) as step:
                self._step(rows, begin + step)

    def _step(self, rows: list[TirExpr], step: TirExpr) -> None:
        """One k: every accumulator takes one fused multiply-add."""
        reader = self.columns.begin_step(step)
        columns = [I.Bind(reader.vector(self.tile, step, v)) for v in range(self.panel.vectors)]
        reader.prefetch_step(self.tile, step)
        for line, row in zip(self.slots, rows, strict=True):
            value = I.Bind(tirx.Broadcast(self.rows.word(self.tile, row, step), self.tile.lanes))
            for slot, column in zip(line, columns, strict=True):
                I.buffer_store(slot, self.words.add(slot[self.every], value, column), [self.every])

    def _in_groups(self, late: Late) -> None:
        """All steps of k, where those of a group share a factor that their sums are multiplied by."""
        rows, length = self.rows.places(self.tile), late.depth
        whole = length // late.steps
        with I.serial(i64(0), i64(whole)) as number:
            self._group(late, rows, bound(number * i64(late.steps)), late.steps)
        if length % late.steps:
            self._group(late, rows, i64(whole * late.steps), length % late.steps)

    def _group(self, late: Late, rows: list[TirExpr], first: TirExpr, steps: int) -> None:
        """The totals after ``steps`` steps from ``first`` on, which share a factor."""
        totals, unroll = self.slots, self.kernel["ku"]
        self.slots = self._allocated()
        self.clear()
        with I.serial(i64(0), i64(steps // unroll)) as turn:
            for u in range(unroll):
                self._step(rows, first + turn * i64(unroll) + i64(u))
        with I.serial(i64(steps // unroll * unroll), i64(steps)) as step:
            self._step(rows, first + step)
        sums, self.slots = self.slots, totals
        for v in range(self.panel.vectors):
            factor = I.Bind(late.factor(self.panel, first, v))
            for total, part in ((line[v], of_group[v]) for line, of_group in zip(totals, sums, strict=True)):
                I.buffer_store(total, self.words.add(total[self.every], part[self.every], factor), [self.every])

    # -- after ----------------------------------------------------------------------------------------------------
    def each(self, use: Use) -> None:
        for r, line in enumerate(self.slots):
            with self.tile.if_valid(r):
                for v, slot in enumerate(line):
                    use(slot[self.every], i64(r), i64(v))
