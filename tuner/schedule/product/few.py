"""The last columns of a product, where whole vectors leave few of them.

A vector of columns that has one column costs as much as a whole one: a quarter of the work of the 49 pixels of an image
of 7 x 7. Here the vectors of the last columns run along k instead, as rows of the left operand lie, and each sum is
added up across its vector at the end of a chunk. The columns are gathered for that, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.operands.gather import product
from tuner.schedule.product.readers import PanelReader
from tuner.schedule.product.sources import Each, PanelSource
from tuner.schedule.product.vectors import VectorTile
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import DTYPE, workspace


@dataclass(frozen=True)
class AlongK(PanelReader):
    """The last columns in ``buffer`` [columns, steps of the chunk at hand], zeros behind the last step."""

    buffer: TirExpr


class WithFew(PanelSource):
    """The panels of ``source``, and the last columns beside them."""

    def __init__(self, context: EmitContext, source: PanelSource, buffer: TirExpr) -> None:
        super().__init__(context)
        self.source, self.buffer = source, buffer

    def groups(self, panels: Share, use: Callable[[Share], None]) -> None:
        self.source.groups(panels, use)

    def prepare(self, each: Each, whole: Chunk) -> None:
        self.source.prepare(_without_few(each), whole)

    def opened(self, panel: Panel) -> Panel:
        return panel if panel.few else self.source.opened(panel)

    def refill(self, each: Each, chunk: Chunk) -> None:
        self.source.refill(_without_few(each), chunk)
        each(lambda panel: self._gather(panel, chunk) if panel.few else _nothing())

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        return replace(panel, reader=AlongK(self.buffer)) if panel.few else self.source.placed(panel, chunk)

    def _gather(self, panel: Panel, chunk: Chunk) -> None:
        context, parts, names = self.context, self.context.parts, self.context.form.k
        with I.serial(i64(0), i64(panel.few)) as column:
            of_column = {**context.outer, **parts.decomposed(context.form.n, panel.column + column)}
            with (
                parts.runs(names, chunk.first, chunk.length) as (values, first, last, shift),
                I.serial(first, last) as step,
            ):
                value = product(context, context.form.right.factors, {**of_column, **values, names[-1]: step})
                I.buffer_store(self.buffer, value, [column, step + shift])
            with I.serial(chunk.length, context.whole_vectors(chunk.length)) as behind:
                I.buffer_store(self.buffer, tirx.FloatImm(DTYPE, 0.0), [column, behind])


@contextmanager
def with_few(context: EmitContext, source: PanelSource, few: int, longest: TirExpr) -> Iterator[PanelSource]:
    """A source that has the ``few`` last columns, too; ``longest``: steps of its longest chunk."""
    if not few:
        yield source
        return
    with workspace((i64(few), context.whole_vectors(longest))) as buffer:
        yield WithFew(context, source, buffer)


def _without_few(each: Each) -> Each:
    return lambda use: each(lambda panel: _nothing() if panel.few else use(panel))


def _nothing() -> None:
    """No statement, where one must be."""
    I.evaluate(tirx.IntImm("int32", 0))


class FewTile(VectorTile):
    """A tile of the last columns: lane ``c`` of a row's total is column ``c``."""

    def reduce(self, ordinal: TirExpr) -> None:
        few, registers = self.panel.few, self.context.task.known_target.hardware.vector_registers
        places, together = self.rows.places(self), max((registers - few - 2) // (few + 1), 1)
        for first in range(0, self.height, together):
            self._rows(places[first : first + together], self.slots[first : first + together])

    def _rows(self, places: list[TirExpr], slots: list[list[TirExpr]]) -> None:
        """The sums of some rows, which are in registers at once."""
        assert isinstance(self.columns, AlongK)
        buffer, length = self.columns.buffer, self.chunk.length
        sums = [[I.alloc_buffer((self.lanes,), DTYPE) for _ in range(self.panel.few)] for _ in places]
        for each in (each for line in sums for each in line):
            I.buffer_store(each, self.vectors.zero(), [self.every])

        def step(at: TirExpr, limit: TirExpr | None) -> None:
            columns = [I.Bind(buffer[column, self.vectors.ramp(at)]) for column in range(self.panel.few)]
            for place, line in zip(places, sums, strict=True):
                row = I.Bind(self.rows.along_k(self, place, at, limit))
                for each, column in zip(line, columns, strict=True):
                    I.buffer_store(each, self.atom.products(each[self.every], row, column), [self.every])

        whole = tirx.floordiv(length, i64(self.lanes))
        with I.serial(i64(0), whole) as turn:
            step(turn * i64(self.lanes), None)
        with I.If(whole * i64(self.lanes) < length), I.Then():
            step(whole * i64(self.lanes), length)
        lane = tirx.Ramp(tirx.IntImm("int32", 0), 1, self.lanes)
        for line, (slot,) in zip(sums, slots, strict=True):
            for column, each in enumerate(line):
                total = tirx.Broadcast(I.Bind(self.vectors.total(each[self.every])), self.lanes)
                is_here = lane == tirx.Broadcast(tirx.IntImm("int32", column), self.lanes)
                I.buffer_store(slot, tirx.Select(is_here, slot[self.every] + total, slot[self.every]), [self.every])
