"""The register tile: ``mr`` rows by ``nv`` vectors of accumulators over a chunk of k."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run
from tuner.schedule.product.epilogue import is_short, through_epilogue
from tuner.schedule.product.operand import Late
from tuner.schedule.product.product import holds_partial
from tuner.schedule.product.rows import RowReader
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, cast, stored
from tuner.schedule.vector.memory import DTYPE, prefetch


class Tile:
    """Writes the code of one tile: ``height`` rows from ``row`` on; only the first ``valid`` ones are stored."""

    def __init__(
        self, context: EmitContext, panel: Panel, chunk: Chunk, rows: RowReader, row: TirExpr, height: int,
        valid: TirExpr | None = None,
    ) -> None:  # fmt: skip
        assert panel.reader is not None
        self.context, self.panel, self.chunk, self.rows, self.columns = context, panel, chunk, rows, panel.reader
        self.kernel, self.vectors, self.lanes = context.kernel, context.vectors, context.vectors.lanes
        self.row, self.height, self.valid = row, height, valid
        self.words, self.total, self.out_dtype = context.words, context.words.dot.total, context.result.dtype
        self.epilogue = context.result.epilogue
        # One buffer of one vector each: larger or `local` ones become a heap workspace, and with a prefetch in the
        # loop every accumulator would be stored at each step.
        self.acc = self._accumulators()

    def _accumulators(self) -> list[list[TirExpr]]:
        vectors = range(self.panel.vectors)
        return [[I.alloc_buffer((self.lanes,), self.total) for _ in vectors] for _ in range(self.height)]

    def emit(self, ordinal: TirExpr) -> None:
        """``ordinal``: which of the tiles over this panel it is, for the share of the next panel that it prefetches."""
        # In a slot, as the first step of a turn is: put into every index, they would make up most of the time of
        # building a kernel.
        self.row = bound(self.row)
        self._start()
        self._fetch_output()
        self._reduce(ordinal)
        self._finish()

    # -- before ---------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """From zero; from what the output holds so far where k is split and this is not its first chunk."""
        if self.chunk.opens is None:
            self._clear()
            return
        with I.If(self.chunk.opens):
            with I.Then():
                self._clear()
            with I.Else():
                for r, line in enumerate(self.acc):
                    with self._if_valid(r):
                        for v, accumulator in enumerate(line):
                            I.buffer_store(accumulator, self._partial(i64(r), i64(v)), [self.vectors.ramp(0)])

    def _clear(self) -> None:
        rows = self.rows.places(self) if self.words.row_head else [None] * self.height
        for line, row in zip(self.acc, rows, strict=True):
            for v, accumulator in enumerate(line):
                I.buffer_store(accumulator, self.words.start(self._head(row, v)), [self.vectors.ramp(0)])

    def _head(self, row: TirExpr | None, v: int) -> TirExpr | None:
        """What stands in front of a row, or of the panel for vector ``v``."""
        if row is None:
            return self.columns.head(self, v)
        buffer, place = self.context.left.row(self.context, row)
        return buffer[(*place, tirx.Ramp(i64(0), i64(1), self.words.dot.group))]

    def _fetch_output(self) -> None:
        """Lines of the output are asked for before they are written, so that the stores do not wait."""
        if not self.kernel["fetch"]:
            return
        for r in range(self.height):
            for v in range(self.panel.vectors):
                buffer, place = self.context.result.row(self.context, self.row + i64(r))
                prefetch(buffer, (*place, self.panel.column + i64(v * self.lanes)), write=True)

    # -- the loop over k ------------------------------------------------------------------------------------------
    def _reduce(self, ordinal: TirExpr) -> None:
        late = self.context.right.late(self.context)
        if late is not None:
            self._in_groups(late)
            return
        places = self.rows.places(self)
        runs = self.rows.runs(self) or self.columns.runs(self)
        with runs or nullcontext(Run(i64(0), self.chunk.length)) as run:
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
        before = ordinal * tirx.floordiv(self.chunk.length, i64(group)) + tirx.floordiv(begin, i64(group))
        with I.serial(i64(0), groups) as turn:
            with I.serial(i64(0), i64(group // unroll)) as part:
                first = bound(begin + turn * i64(group) + part * i64(unroll))
                for u in range(unroll):
                    self._step(rows, first + i64(u))
            self.columns.prefetch_next(self, before + turn)
        if not (isinstance(length, tirx.IntImm) and int(length) % group == 0):
            # Both bounds without ``begin``: TVM's analyzer fails on an extent that it reads as a minimum of itself.
            with I.serial(groups * i64(group), length) as step:
                self._step(rows, begin + step)

    def _step(self, rows: list[TirExpr], step: TirExpr) -> None:
        """One k: every accumulator takes one fused multiply-add."""
        reader = self.columns.begin_step(step)
        columns = [I.Bind(reader.vector(self, step, v)) for v in range(self.panel.vectors)]
        reader.prefetch_step(self, step)
        for line, row in zip(self.acc, rows, strict=True):
            value = I.Bind(tirx.Broadcast(self.rows.word(self, row, step), self.lanes))
            for accumulator, column in zip(line, columns, strict=True):
                total = self.words.add(accumulator[self.vectors.ramp(0)], value, column)
                I.buffer_store(accumulator, total, [self.vectors.ramp(0)])

    def _in_groups(self, late: Late) -> None:
        """All steps of k, where those of a group share a factor that their sums are multiplied by."""
        rows, length = self.rows.places(self), late.depth
        whole = length // late.steps
        with I.serial(i64(0), i64(whole)) as number:
            self._group(late, rows, bound(number * i64(late.steps)), late.steps)
        if length % late.steps:
            self._group(late, rows, i64(whole * late.steps), length % late.steps)

    def _group(self, late: Late, rows: list[TirExpr], first: TirExpr, steps: int) -> None:
        """The totals after ``steps`` steps from ``first`` on, which share a factor."""
        totals, unroll = self.acc, self.kernel["ku"]
        self.acc = self._accumulators()
        self._clear()
        with I.serial(i64(0), i64(steps // unroll)) as turn:
            for u in range(unroll):
                self._step(rows, first + turn * i64(unroll) + i64(u))
        with I.serial(i64(steps // unroll * unroll), i64(steps)) as step:
            self._step(rows, first + step)
        sums, self.acc = self.acc, totals
        every = self.vectors.ramp(0)
        for v in range(self.panel.vectors):
            factor = I.Bind(late.factor(self.panel, first, v))
            for total, part in zip(totals, sums, strict=True):
                I.buffer_store(total[v], self.words.add(total[v][every], part[v][every], factor), [every])

    # -- after ----------------------------------------------------------------------------------------------------
    def _finish(self) -> None:
        """Write the accumulators; through the epilogue, and as the output's dtype, once k is done."""
        if self.chunk.closes is None or (not self.epilogue and self.total == self.out_dtype):
            self._store()
            return
        with I.If(self.chunk.closes):
            with I.Then():
                self._store()
            with I.Else():
                self._store_partial()

    def _store(self) -> None:
        """A short epilogue runs on the registers; a long one over the tile again while it is in L1."""
        inline = is_short(self.epilogue) or not holds_partial(self.out_dtype)
        if not inline:
            self._store_partial()
            rows = self.valid if self.valid is not None else i64(self.height)
            with I.serial(i64(0), rows) as r, I.serial(i64(0), i64(self.panel.vectors)) as v:
                self._write(r, v, self._result(self._partial(r, v), r, v))
            return
        self._each(lambda value, r, v: self._write(r, v, self._result(value, r, v)))

    def _store_partial(self) -> None:
        """The accumulators as they are, in the place of the output."""
        self._each(lambda value, r, v: self._write(r, v, as_bits(value, self.out_dtype)))

    def _each(self, use: Callable[[TirExpr, TirExpr, TirExpr], None]) -> None:
        """Each valid accumulator, with its row and its vector."""
        for r, line in enumerate(self.acc):
            with self._if_valid(r):
                for v, accumulator in enumerate(line):
                    use(accumulator[self.vectors.ramp(0)], i64(r), i64(v))

    def _result(self, value: TirExpr, r: TirExpr, v: TirExpr) -> TirExpr:
        """What of a total goes to the output."""
        value = through_epilogue(self.context, value, self.row + r, self._column(v), self.panel.limit)
        return value if self.out_dtype == DTYPE else stored(bound(cast(bound(value), self.out_dtype)), self.out_dtype)

    def _partial(self, r: TirExpr, v: TirExpr) -> TirExpr:
        """A total as ``_store_partial`` left it."""
        buffer, place = self.context.result.row(self.context, self.row + r)
        return as_bits(self.vectors.load(buffer, place, self._column(v), self.panel.limit), self.total)

    def _write(self, r: TirExpr, v: TirExpr, value: TirExpr) -> None:
        buffer, place = self.context.result.row(self.context, self.row + r)
        self.vectors.store(buffer, value, place, self._column(v), self.panel.limit)

    def _column(self, v: TirExpr) -> TirExpr:
        return self.panel.column + v * i64(self.lanes)

    @contextmanager
    def _if_valid(self, row: int) -> Iterator[None]:
        """What is written here runs for the first ``valid`` rows of a tile, for all of them if that is None."""
        if self.valid is None:
            yield
            return
        with I.If(i64(row) < self.valid), I.Then():
            yield
