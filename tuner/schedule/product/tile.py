"""The register tile: ``mr`` rows by ``nv`` vectors of accumulators over a chunk of k."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.schedule.product.epilogue import is_short, through_epilogue
from tuner.schedule.product.frame import Chunk, Frame, Panel, Rows
from tuner.schedule.product.product import holds_partial, panels_of_strip
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, cast, stored
from tuner.schedule.vector.memory import DTYPE, prefetch


class Tile:
    """Writes the code of one tile: ``height`` rows from ``row`` on; only the first ``valid`` ones are stored."""

    def __init__(
        self,
        frame: Frame,
        panel: Panel,
        chunk: Chunk,
        rows: Rows,
        row: TirExpr,
        height: int,
        valid: TirExpr | None = None,
    ) -> None:
        self.frame, self.panel, self.chunk, self.rows = frame, panel, chunk, rows
        self.kernel, self.vectors, self.lanes = frame.kernel, frame.vectors, frame.vectors.lanes
        self.row, self.height, self.valid = row, height, valid
        self.words, self.total, self.out_dtype = frame.words, frame.words.dot.total, frame.out_dtype
        self.epilogue = frame.contraction.epilogue
        # One buffer of one vector each: larger or `local` ones become a heap workspace, and with a prefetch in the
        # loop every accumulator would be stored at each step.
        self.acc = [[I.alloc_buffer((self.lanes,), self.total) for _ in range(panel.vectors)] for _ in range(height)]

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
        rows = self._row_indices() if self.words.row_head else [None] * self.height
        for line, row in zip(self.acc, rows, strict=True):
            for v, accumulator in enumerate(line):
                I.buffer_store(accumulator, self.words.start(self._head(row, v)), [self.vectors.ramp(0)])

    def _head(self, row: TirExpr | None, v: int) -> TirExpr | None:
        """What stands in front of a row, or of the panel for vector ``v``."""
        if row is not None:
            buffer, place = self.frame.left_row(row)
            return buffer[(*place, tirx.Ramp(i64(0), i64(1), self.words.dot.group))]
        if not self.words.head or self.panel.packed is None:
            return None
        return self.panel.packed[(self.panel.index, i64(0), self.words.columns(v * self.lanes))]

    def _fetch_output(self) -> None:
        """Lines of the output are asked for before they are written, so that the stores do not wait."""
        if not self.kernel["fetch"]:
            return
        for r in range(self.height):
            for v in range(self.panel.vectors):
                buffer, place = self.frame.out_row(self.row + i64(r))
                prefetch(buffer, (*place, self.panel.column + i64(v * self.lanes)), write=True)

    # -- the loop over k ------------------------------------------------------------------------------------------
    def _reduce(self, ordinal: TirExpr) -> None:
        self._turns_of_chunk(self._row_indices(), ordinal)

    def _turns_of_chunk(self, index: list[TirExpr], ordinal: TirExpr) -> None:
        """All steps of the chunk, where the tile's rows are at ``index``."""
        self._turns(index, i64(0), self.chunk.length, ordinal)

    def _turns(self, index: list[TirExpr], begin: TirExpr, length: TirExpr, ordinal: TirExpr) -> None:
        """``length`` steps from ``begin`` on, which counts from the chunk's first one."""
        unroll = self.kernel["ku"]
        group = max(unroll, self.kernel["ahead"])
        groups = tirx.floordiv(length, i64(group))
        # Which of the groups of all tiles over this panel the first one here is.
        before = ordinal * tirx.floordiv(self.chunk.length, i64(group)) + tirx.floordiv(begin, i64(group))
        with I.serial(i64(0), groups) as turn:
            with I.serial(i64(0), i64(group // unroll)) as part:
                first = bound(begin + turn * i64(group) + part * i64(unroll))
                for u in range(unroll):
                    self._step(index, first + i64(u))
            self._fetch_next_panel(before + turn)
        if not (isinstance(length, tirx.IntImm) and int(length) % group == 0):
            # Both bounds without ``begin``: TVM's analyzer fails on an extent that it reads as a minimum of itself.
            with I.serial(groups * i64(group), length) as step:
                self._step(index, begin + step)

    def _row_indices(self) -> list[TirExpr]:
        """Where the tile's rows are: in the left operand, or among those of it that are packed."""
        first = self.rows.row if self.rows.packed is not None else i64(0)
        row = self.row if self.rows.packed is None else bound(self.row - first)
        index = [row + i64(r) for r in range(self.height)]
        if self.valid is None:
            return index
        last = bound(self.frame.extent["m"] - i64(1) - first)
        return [bound(tirx.min(i, last)) for i in index]

    def _step(self, rows: list[TirExpr], step: TirExpr) -> None:
        """One k: every accumulator takes one fused multiply-add."""
        columns = [I.Bind(self._right(step, v)) for v in range(self.panel.vectors)]
        near = self.kernel["near"]
        if near and self.panel.packed is not None:
            for v in range(self.panel.vectors):
                prefetch(self.panel.packed, self._packed(step + i64(near), self._line(v)))
        for line, row in zip(self.acc, rows, strict=True):
            value = I.Bind(tirx.Broadcast(self._left(row, step), self.lanes))
            for accumulator, column in zip(line, columns, strict=True):
                total = self.words.add(accumulator[self.vectors.ramp(0)], value, column)
                I.buffer_store(accumulator, total, [self.vectors.ramp(0)])

    def _left(self, row: TirExpr, step: TirExpr) -> TirExpr:
        if self.rows.packed is None:
            buffer, place = self.frame.left_row(row)
            step = self.chunk.first + step
            return self.words.left_word(buffer, place, step + i64(1) if self.words.row_head else step)
        return self.frame.packed_word(self.rows.packed, row, step)

    def _right(self, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of row ``step`` of the right operand, from wherever it is packed."""
        if self.panel.packed is not None and self.frame.contraction.right_is_constant:
            return self.frame.packed_vector(self.panel, self._packed(step, i64(0))[1], v)
        if self.panel.packed is not None:
            return self.panel.packed[self._packed(step, self.words.columns(v * self.lanes))]
        buffer, place = self.frame.right_step(self.chunk.first + step)
        value = self.vectors.load(buffer, place, self.panel.column + i64(v * self.lanes), self.panel.limit)
        return self.words.right_words(value)

    def _packed(self, step: TirExpr, column: TirExpr) -> tuple[TirExpr, ...]:
        first = i64(0) if self.panel.first is None else self.panel.first
        row = self.chunk.first - first + step
        return (self.panel.index, row + i64(self.words.head) if self.words.head else row, column)

    def _line(self, v: int) -> TirExpr:
        """The first element of vector ``v`` in a step of a panel."""
        return i64(v * self.lanes * self.words.dot.group)

    def _fetch_next_panel(self, position: TirExpr) -> None:
        """Spread the fetch of the next panel over the tiles of this one: one of its rows for each group of steps.
        The next one is that of the next strip.

        The last panel runs past the end of the buffer, which costs a wasted prefetch and no fault.
        """
        if self.kernel["ahead"] and self.panel.packed is not None:
            index, *place = self._packed(position, i64(0))
            for v in range(self.panel.vectors):
                prefetch(self.panel.packed, [index + i64(panels_of_strip(self.kernel)), place[0], self._line(v)])

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
        value = through_epilogue(self.frame, self.epilogue, value, self.row + r, self._column(v), self.panel.limit)
        return value if self.out_dtype == DTYPE else stored(bound(cast(bound(value), self.out_dtype)), self.out_dtype)

    def _partial(self, r: TirExpr, v: TirExpr) -> TirExpr:
        """A total as ``_store_partial`` left it."""
        buffer, place = self.frame.out_row(self.row + r)
        return as_bits(self.vectors.load(buffer, place, self._column(v), self.panel.limit), self.total)

    def _write(self, r: TirExpr, v: TirExpr, value: TirExpr) -> None:
        buffer, place = self.frame.out_row(self.row + r)
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
