"""Totals of a register tile in vector registers."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from tuner.schedule.product.context import Run, where
from tuner.schedule.product.product import Late
from tuner.schedule.product.readers import PackedSlice
from tuner.schedule.product.tile import Tile, Use
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant


class VectorTile(Tile):
    """Totals in vector registers, a slot for each: every step of k is a word of a row times vectors of words."""

    is_unrolled = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.every = self.vectors.ramp(0)
        self.slots = self._allocated(self.total)

    def _allocated(self, total: str) -> list[list[TirExpr]]:
        # One buffer of one vector each: larger or `local` ones become a heap workspace, and with a prefetch in the
        # loop every accumulator would be stored at each step.
        vectors = range(self.panel.vectors)
        return [[I.alloc_buffer((self.lanes,), total) for _ in vectors] for _ in range(self.height)]

    def clear(self) -> None:
        if self.total != self.atom.total:
            nothing = constant(0, self.total, self.lanes)
            self._each_slot(lambda slot, r, v: I.buffer_store(slot, nothing, [self.every]), is_whole=True)
            return
        rows = self.rows.places(self) if self.words.row_compensation else [None] * self.height
        for line, row in zip(self.slots, rows, strict=True):
            for v, slot in enumerate(line):
                start = self.words.start(self._compensation(row, v))
                if self.context.part is not None:
                    # What compensates an offset does so for all of k: once.
                    is_first = tirx.Broadcast(self.context.part.index == i64(0), self.lanes)
                    start = tirx.Select(is_first, start, self.words.start(None))
                I.buffer_store(slot, start, [self.every])

    def _compensation(self, row: TirExpr | None, v: int) -> TirExpr | None:
        """What stands in front of a row, or of the panel for vector ``v``."""
        if row is None:
            return self.columns.compensation(self, v)
        buffer, place = self.context.left.row(self.context, row)
        return buffer[(*place, tirx.Ramp(i64(0), i64(1), self.atom.group))]

    def resume(self) -> None:
        self._each_slot(lambda slot, r, v: I.buffer_store(slot, self.partial(r, v), [self.every]))

    def each(self, use: Use) -> None:
        self._each_slot(lambda slot, r, v: use(slot[self.every], r, v))

    def _each_slot(self, use: Use, *, is_whole: bool = False) -> None:
        """Those of the valid rows, or of all."""

        def line(r: int) -> None:
            for v, slot in enumerate(self.slots[r]):
                use(slot, i64(r), i64(v))

        for r in range(self.height):
            where(None if self.valid is None or is_whole else i64(r) < self.valid, partial(line, r))

    # -- the loop over k ------------------------------------------------------------------------------------------
    def reduce(self, ordinal: TirExpr) -> None:
        late = self.late
        if late is not None:
            self.in_groups(late, partial(self._group, late, self.rows.places(self)))
            return
        places = self.rows.places(self)
        runs = self.rows.runs(self) or self.columns.runs(self)
        with runs or nullcontext(Run(i64(0), self.chunk.length)) as run:
            self._turns(self.rows.in_run(places, run), run, ordinal)

    def _turns(self, rows: list[TirExpr], run: Run, ordinal: TirExpr) -> None:
        """The steps of a run, which count from the chunk's first one."""
        unroll, begin, length = self.kernel["ku"], run.begin, run.length
        group = max(unroll, self.kernel["ahead"])
        groups = tirx.floordiv(length, i64(group))
        # Which of the groups of all tiles over this panel the first one here is.
        before = ordinal * tirx.floordiv(self.chunk.length, i64(group)) + tirx.floordiv(begin, i64(group))
        with I.serial(i64(0), groups) as turn:
            with I.serial(i64(0), i64(group // unroll)) as part:
                first = bound(begin + turn * i64(group) + part * i64(unroll))
                for u in range(unroll):
                    self._step(rows, run, first + i64(u))
            self.columns.prefetch_next(self, before + turn)
        if not (isinstance(length, tirx.IntImm) and int(length) % group == 0):
            # Both bounds without ``begin``: TVM's analyzer fails on an extent that it reads as a minimum of itself.
            with I.serial(groups * i64(group), length) as step:
                self._step(rows, run, begin + step)

    def _step(self, rows: list[TirExpr], run: Run, step: TirExpr) -> None:
        """One k: every accumulator takes one fused multiply-add."""
        reader = self.columns.at_step(run, step)
        columns = [I.Bind(reader.vector(self, step, v)) for v in range(self.panel.vectors)]
        reader.prefetch_step(self, step)
        for line, row in zip(self.slots, rows, strict=True):
            value = I.Bind(tirx.Broadcast(self.rows.word(self, row, step), self.lanes))
            for slot, column in zip(line, columns, strict=True):
                self._add(slot, value, column)

    def _add(self, slot: TirExpr, left: TirExpr, right: TirExpr) -> None:
        I.buffer_store(slot, self.atom.products(slot[self.every], left, right), [self.every])

    def _group(self, late: Late, rows: list[TirExpr], run: Run) -> None:
        """The totals after the steps of ``run``, which share a factor."""
        totals, unroll, (first, steps) = self.slots, self.kernel["ku"], (run.begin, run.length)
        self.slots = self._allocated(self.atom.total)
        self._begin(late, first)
        turns = tirx.floordiv(steps, i64(unroll))
        with I.serial(i64(0), turns) as turn:
            for u in range(unroll):
                self._step(rows, run, first + turn * i64(unroll) + i64(u))
        with I.serial(turns * i64(unroll), steps) as step:
            self._step(rows, run, first + step)
        sums, self.slots = self.slots, totals
        for v in range(self.panel.vectors):
            factor = I.Bind(late.factor(self.panel, self.chunk.first + first, v))
            for total, part in zip(totals, sums, strict=True):
                value = part[v][self.every]
                value = value if self.total == self.atom.total else cast(bound(value), self.total)
                I.buffer_store(total[v], total[v][self.every] + value * factor, [self.every])

    def _begin(self, late: Late, first: TirExpr) -> None:
        """The sums of the group whose first step that is."""
        if self.total == self.atom.total:
            self.clear()
            return
        for v in range(self.panel.vectors):
            value = self.words.start(None)
            if late.start is not None:
                assert isinstance(self.columns, PackedSlice)
                row = late.start(tirx.floordiv(first, i64(late.steps)))
                value = I.Bind(self.words.start(self.columns.load(self.words, row, v)))
            for line in self.slots:
                I.buffer_store(line[v], value, [self.every])
