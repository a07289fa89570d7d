"""The register tile: ``mr`` rows by ``nv`` vectors of totals over a chunk of k, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.schedule.product.accumulators import Accumulators
from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.epilogue import is_short, through_epilogue
from tuner.schedule.product.matrices import MatrixAccumulators
from tuner.schedule.product.product import can_hold_partial
from tuner.schedule.product.rows import RowReader
from tuner.schedule.product.vectors import VectorAccumulators
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, stored_as
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
        self.words, self.total, self.out_dtype = context.words, context.words.atom.total, context.result.dtype
        self.epilogue = context.result.epilogue
        self.accumulators: Accumulators = (
            VectorAccumulators(self) if context.words.atom.unit is None else MatrixAccumulators(self)
        )

    def emit(self, ordinal: TirExpr) -> None:
        """``ordinal``: which of the tiles over this panel it is, for the share of the next panel that it prefetches."""
        # In a slot, as the first step of a turn is: put into every index, they would make up most of the time of
        # building a kernel.
        self.row = bound(self.row)
        self._start()
        self._fetch_output()
        self.accumulators.reduce(ordinal)
        self._finish()

    # -- before ---------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """From zero; from what the output holds so far where k is split and this is not its first chunk."""
        if self.chunk.is_first is None:
            self.accumulators.clear()
            return
        with I.If(self.chunk.is_first):
            with I.Then():
                self.accumulators.clear()
            with I.Else():
                self.accumulators.resume()

    def _fetch_output(self) -> None:
        """Lines of the output are asked for before they are written, so that the stores do not wait."""
        if not self.kernel["fetch"]:
            return
        for r in range(self.height):
            for v in range(self.panel.vectors):
                buffer, place = self.context.result.row(self.context, self.row + i64(r))
                prefetch(buffer, (*place, self.panel.column + i64(v * self.lanes)), write=True)

    # -- after ----------------------------------------------------------------------------------------------------
    def _finish(self) -> None:
        """Write the totals; through the epilogue, and as the output's dtype, once k is done."""
        if self.chunk.is_last is None or (not self.epilogue and self.total == self.out_dtype):
            self._store()
            return
        with I.If(self.chunk.is_last):
            with I.Then():
                self._store()
            with I.Else():
                self._store_partial()

    def _store(self) -> None:
        """A short epilogue runs on the registers; a long one over the tile again while it is in L1."""
        inline = is_short(self.epilogue) or not can_hold_partial(self.out_dtype) or not self.accumulators.is_unrolled
        if not inline:
            self._store_partial()
            rows = self.valid if self.valid is not None else i64(self.height)
            with I.serial(i64(0), rows) as r, I.serial(i64(0), i64(self.panel.vectors)) as v:
                self._write(r, v, self._result(self.partial(r, v), r, v))
            return
        self.accumulators.each(lambda value, r, v: self._write(r, v, self._result(value, r, v)))

    def _store_partial(self) -> None:
        """The totals as they are, in the place of the output."""
        self.accumulators.each(lambda value, r, v: self._write(r, v, as_bits(value, self.out_dtype)))

    def _result(self, value: TirExpr, r: TirExpr, v: TirExpr) -> TirExpr:
        """What of a total goes to the output."""
        value = through_epilogue(self.context, value, self.row + r, self._column(v), self.panel.limit)
        return value if self.out_dtype == DTYPE else stored_as(bound(value), self.out_dtype)

    def partial(self, r: TirExpr, v: TirExpr) -> TirExpr:
        """A vector of totals as ``_store_partial`` left it."""
        buffer, place = self.context.result.row(self.context, self.row + r)
        return as_bits(self.vectors.load(buffer, place, self._column(v), self.panel.limit), self.total)

    def _write(self, r: TirExpr, v: TirExpr, value: TirExpr) -> None:
        buffer, place = self.context.result.row(self.context, self.row + r)
        self.vectors.store(buffer, value, place, self._column(v), self.panel.limit)

    def _column(self, v: TirExpr) -> TirExpr:
        return self.panel.column + v * i64(self.lanes)

    @contextmanager
    def if_valid(self, row: int) -> Iterator[None]:
        """What is written here runs for the first ``valid`` rows of a tile, for all of them if that is None."""
        if self.valid is None:
            yield
            return
        with I.If(i64(row) < self.valid), I.Then():
            yield
