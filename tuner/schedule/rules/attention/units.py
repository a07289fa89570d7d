"""Both products of attention in the registers of a matrix unit.

Rows of q are packed for each block of rows, k and v as for other instructions on words. Tiles of scores are stored
where the softmax reads them; sums of the output stand in memory between blocks of columns, and are scaled there. All
tiles are whole: words and columns that there are not are zero, and surplus rows are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.atom import Atom, MatrixUnit, configured, registers_of
from tuner.schedule.product.product import ceil_div
from tuner.schedule.rules.attention.context import Context, Tile
from tuner.schedule.rules.attention.tile import along_e
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.memory import Vectors, bytes_of


def in_unit(context: Context) -> AbstractContextManager[None]:
    """What a thread does with the registers, if the kernel is for them."""
    return nullcontext() if context.scored is None else configured(context.scored.atom)


def pack_queries(context: Context, row: TirExpr, rows: TirExpr) -> None:
    """A block of rows of q as words, whole multiplications long."""
    words, queries = context.scored, context.room["queries"]
    assert words is not None
    with I.serial(i64(0), rows) as local, I.serial(i64(0), ceil_div(context.extent["d"], words.width)) as v:
        first = I.Bind(v * i64(words.width))
        buffer, (*outer, last) = context.place(context.chain.q, i=row + local, d=first)
        elements = Vectors(words.width).load(buffer, outer, last, context.extent["d"])
        place = context.vectors.ramp(v * i64(context.lanes))
        I.buffer_store(queries, words.of_column(elements), [local, place])


def scores_in_unit(context: Context, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """Scores of rows of q and a packed panel of k, to ``column`` of a block and those behind it."""
    assert context.scored is not None
    room, atom, unit = context.room, context.scored.atom, context.unit
    assert unit is not None
    registers = _Registers(atom, unit, context, context.kernel["nv"])
    for total, _, _ in registers.totals():
        I.evaluate(unit.zero(total))
    with I.serial(i64(0), ceil_div(context.extent["d"], atom.depth)) as turn:
        step = I.Bind(turn * i64(atom.steps))
        registers.multiply((room["queries"], [tile.local, step]), (room["keys"], [panel, step, i64(0)]))
    for total, down, across in registers.totals():
        place = room["scores"][tile.local + i64(down), column + i64(across)]
        I.evaluate(unit.store(total, tirx.address_of(place), _stride(room["scores"])))


def values_in_unit(context: Context, tile: Tile, columns: Share, start: TirExpr) -> None:
    """Sums over ``columns`` of a block that starts at ``start``, onto those of earlier blocks, which are scaled."""
    assert context.mixing is not None
    room, atom, unit = context.room, context.mixing.atom, context.unit
    assert unit is not None
    mixed, width = room["mixed"], i64(context.kernel["ev"] * context.lanes)
    for places, _ in along_e(context):
        registers = _Registers(atom, unit, context, len(places))

        def at(down: int, across: int, first: TirExpr = places[0]) -> TirExpr:
            return tirx.address_of(mixed[tile.local + i64(down), first + i64(across)])

        for total, down, across in registers.totals():
            is_new = not context.kernel["cols"]
            I.evaluate(unit.zero(total) if is_new else unit.load(total, at(down, across), _stride(mixed)))
        panel = I.Bind(tirx.floordiv(places[0], width))
        with I.serial(i64(0), ceil_div(columns[1] - columns[0], atom.depth)) as turn:
            column = I.Bind(columns[0] + turn * i64(atom.depth))
            word = tirx.floordiv(column, i64(atom.group))
            weights = room["weights"], [tile.local, column - start]
            registers.multiply(weights, (room["values"], [panel, word, i64(0)]))
        for total, down, across in registers.totals():
            I.evaluate(unit.store(total, at(down, across), _stride(mixed)))


def scale_sums(context: Context, local: TirExpr) -> None:
    """The sums of a row so far, from the old maximum to the new one."""
    mixed, lanes = context.room["mixed"], context.lanes
    factor = I.Bind(tirx.Broadcast(context.room["factor"][local], lanes))
    with I.serial(i64(0), ceil_div(context.extent["e"], lanes)) as v:
        place = [local, context.vectors.ramp(v * i64(lanes))]
        I.buffer_store(mixed, mixed[tuple(place)] * factor, place)


def fill_weights(context: Context, local: TirExpr, column: TirExpr) -> None:
    """Zero exponentials from ``column`` of a block on, up to a whole multiplication."""
    assert context.mixing is not None
    atom, lanes = context.mixing.atom, context.lanes
    nothing = constant(0, atom.element, lanes)
    for vector in range(atom.depth // lanes - 1):
        place = [local, context.vectors.ramp(column + i64(vector * lanes))]
        I.buffer_store(context.room["weights"], nothing, place)


Place = tuple[TirExpr, list[TirExpr]]
"""A buffer, and indices there."""


class _Registers:
    """``down`` by ``across`` registers of totals, then one of the left operand for each row of them, then those of the
    right operand, which take turns."""

    def __init__(self, atom: Atom, unit: MatrixUnit, context: Context, vectors: int) -> None:
        self.atom, self.unit = atom, unit
        self.down, self.across, least = registers_of(atom, context.lanes, context.kernel["mr"], vectors)
        self.spare = min(unit.registers - least + 1, self.across)

    def totals(self) -> Iterator[tuple[int, int, int]]:
        """Each register of totals with its first row and column."""
        for i in range(self.down):
            for j in range(self.across):
                yield i * self.across + j, i * self.atom.rows, j * self.unit.columns

    def multiply(self, left: Place, right: Place) -> None:
        """One multiplication onto each of the totals. Elements of ``left`` are in words or apart."""
        (rows, (*outer, step)), (panel, (*inner, column)) = left, right
        lefts, rights = self.down * self.across, self.down * self.across + self.down
        for i in range(self.down):
            at = tirx.address_of(rows[(outer[0] + i64(i * self.atom.rows), step)])
            I.evaluate(self.unit.load(lefts + i, at, _stride(rows)))
        for j in range(self.across):
            register = rights + j % self.spare
            at = tirx.address_of(panel[(*inner, column + i64(j * self.unit.columns))])
            I.evaluate(self.unit.load(register, at, _stride(panel)))
            for i in range(self.down):
                I.evaluate(self.unit.multiply(i * self.across + j, lefts + i, register))


def _stride(buffer: TirExpr) -> TirExpr:
    return buffer.shape[-1] * i64(bytes_of(str(buffer.dtype)))
