"""Totals of a register tile in the tile registers of a matrix unit.

Rows are packed at the call and panels before they are used, both filled up with zeros to whole multiplications. Totals
go through memory, a few lines of L1, on their way to the output and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.schedule.product.accumulators import Accumulators, Use
from tuner.schedule.product.atom import MatrixUnit, registers_of
from tuner.schedule.product.packing import word_elements
from tuner.schedule.product.panels import PackedSlice
from tuner.schedule.product.rows import PackedRows
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import bytes_of, workspace

if TYPE_CHECKING:
    from tuner.schedule.product.context import EmitContext
    from tuner.schedule.product.tile import Tile


class MatrixAccumulators(Accumulators):
    """``down`` by ``across`` tiles of totals, then a tile of the left operand for each row of them, then those of the
    right operand, which take turns."""

    is_unrolled = False

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile)
        self.context, self.atom = tile.context, tile.words.atom
        self.unit = unit_of(self.context)
        self.down, self.across, least = registers_of(self.atom, tile.lanes, tile.height, tile.panel.vectors)
        self.left = self.down * self.across
        self.right = self.left + self.down
        self.spare = min(self.unit.registers - least + 1, self.across)
        assert self.context.totals is not None
        self.totals = self.context.totals

    def _total(self, i: int, j: int) -> int:
        return i * self.across + j

    def _each_total(self) -> Iterator[tuple[int, TirExpr, TirExpr]]:
        """The register of each tile of totals, where it is in memory, and the bytes from a row to the next."""
        for i in range(self.down):
            for j in range(self.across):
                at = self.totals[i64(i * self.atom.rows), i64(j * self.unit.columns)]
                yield self._total(i, j), tirx.address_of(at), _stride(self.totals)

    @property
    def _valid(self) -> TirExpr:
        return i64(self.tile.height) if self.tile.valid is None else self.tile.valid

    def clear(self) -> None:
        for register, *_ in self._each_total():
            I.evaluate(self.unit.zero(register))

    def resume(self) -> None:
        with I.serial(i64(0), self._valid) as r:
            for v in range(self.tile.panel.vectors):
                at = self.tile.vectors.ramp(i64(v * self.tile.lanes))
                I.buffer_store(self.totals, self.tile.partial(r, i64(v)), [r, at])
        for register, pointer, stride in self._each_total():
            I.evaluate(self.unit.load(register, pointer, stride))

    def reduce(self, ordinal: TirExpr) -> None:
        rows, panel, chunk = self.tile.rows, self.tile.columns, self.tile.chunk
        assert isinstance(rows, PackedRows) and isinstance(panel, PackedSlice)
        steps, group = self.atom.steps, self.atom.group
        turns = tirx.floordiv(chunk.length + i64(steps - 1), i64(steps))
        first = I.Bind(self.tile.row - rows.first())
        word = i64(word_elements(self.context, rows.buffer))
        with I.serial(i64(0), turns) as turn:
            step = I.Bind(turn * i64(steps))
            for i in range(self.down):
                at = rows.buffer[first + i64(i * self.atom.rows), step * word]
                I.evaluate(self.unit.load(self.left + i, tirx.address_of(at), _stride(rows.buffer)))
            for j in range(self.across):
                right = self.right + j % self.spare
                at = panel.buffer[panel.index, chunk.first - panel.first + step, i64(j * self.unit.columns * group)]
                I.evaluate(self.unit.load(right, tirx.address_of(at), _stride(panel.buffer)))
                for i in range(self.down):
                    I.evaluate(self.unit.multiply(self._total(i, j), self.left + i, right))
        for register, pointer, stride in self._each_total():
            I.evaluate(self.unit.store(register, pointer, stride))

    def each(self, use: Use) -> None:
        with I.serial(i64(0), self._valid) as r:
            for v in range(self.tile.panel.vectors):
                use(I.Bind(self.totals[r, self.tile.vectors.ramp(i64(v * self.tile.lanes))]), r, i64(v))


def unit_of(context: EmitContext) -> MatrixUnit:
    """The unit of a kernel that multiplies by one."""
    unit = context.words.atom.unit
    assert unit is not None
    return unit


def _stride(buffer: TirExpr) -> TirExpr:
    """Bytes from a row of a buffer to the next."""
    return buffer.shape[-1] * i64(bytes_of(str(buffer.dtype)))


@contextmanager
def in_unit(context: EmitContext) -> Iterator[EmitContext]:
    """The context of what a thread does of one product: with memory for the totals of a tile, where they are in a
    matrix unit."""
    atom = context.words.atom
    if atom.unit is None:
        yield context
        return
    for statement in atom.unit.begin():
        I.evaluate(statement)
    with workspace((i64(context.kernel["mr"]), i64(context.nr)), atom.total) as totals:
        yield replace(context, totals=totals)
    for statement in atom.unit.end():
        I.evaluate(statement)
