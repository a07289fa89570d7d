"""Rows of the left operand: where a kernel takes them from, and how a tile reads some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tuner.schedule.product.axes import IN_IMAGE, ROWS_PACKED
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.schedule.product.context import Chunk, EmitContext, Run
    from tuner.schedule.product.tile import Tile

Extent = Callable[[], tuple[TirExpr, TirExpr]]
"""Writes which row of a block is its first, and how many it has."""
RowSource = Callable[[Extent], "AbstractContextManager[Callable[[Chunk], RowReader]]"]
"""From the rows of a block to what reads them at each chunk."""


# -- how a tile reads rows --------------------------------------------------------------------------------------------
class RowReader:
    """The left operand at the rows of one tile: as it lies in its tensor, where a subclass does not say otherwise."""

    def places(self, tile: Tile) -> list[TirExpr]:
        """Where the tile's rows are here. Those past its last one repeat that."""
        return places_from(tile, tile.row, tile.context.extent["m"] - i64(1))

    def runs(self, tile: Tile) -> AbstractContextManager[Run] | None:
        """The runs of the tile's chunk that the operand lies in; None: it is one."""
        return None

    def in_run(self, places: list[TirExpr], run: Run) -> list[TirExpr]:
        """The places for the steps of a run."""
        return places

    def word(self, tile: Tile, place: TirExpr, step: TirExpr) -> TirExpr:
        """The word of a row at one step of the chunk."""
        buffer, indices = tile.context.left.row(tile.context, place)
        return tile.words.of_row(buffer, indices, tile.chunk.first + step + i64(tile.words.row_compensation))


class RowsInPlace(RowReader):
    """The operand as it lies in its tensor."""


@dataclass(frozen=True)
class PackedRows(RowReader):
    """``buffer`` [rows, steps of the chunk at hand], whose row 0 is ``left[row]``."""

    buffer: TirExpr
    row: TirExpr

    def places(self, tile: Tile) -> list[TirExpr]:
        return places_from(tile, bound(tile.row - self.row), tile.context.extent["m"] - i64(1) - self.row)

    def word(self, tile: Tile, place: TirExpr, step: TirExpr) -> TirExpr:
        elements = tile.context.left.word_elements(tile.context)
        if elements == 1:
            return self.buffer[place, step]
        return tirx.reinterpret("int32", self.buffer[place, tirx.Ramp(step * i64(elements), i64(1), elements)])


def places_from(tile: Tile, first: TirExpr, last: TirExpr) -> list[TirExpr]:
    """The places of a tile's rows from ``first`` on, none of them past ``last``."""
    index = [first + i64(number) for number in range(tile.height)]
    if tile.valid is None:
        return index
    last = bound(last)
    return [bound(tirx.min(each, last)) for each in index]


# -- where a kernel takes rows from -----------------------------------------------------------------------------------
@contextmanager
def row_source(context: EmitContext, longest: TirExpr) -> Iterator[RowSource]:
    """Where the kernel of ``context`` takes its rows from; ``longest``: steps of its longest chunk."""
    rows, mr = context.kernel["rows"], context.kernel["mr"]
    if rows == ROWS_PACKED:
        # A ragged rest has the rows of whole instructions.
        rest = mr - 1 if context.words.atom.rows == 1 else mr
        with context.left.room(context, context.kernel["mb"] * mr + rest, longest) as buffer:
            yield lambda extent: nullcontext(partial(_packed, context, buffer, extent))
    elif rows == IN_IMAGE:
        yield partial(_in_image, context)
    else:
        yield lambda extent: nullcontext(lambda chunk: RowsInPlace())


def _packed(context: EmitContext, buffer: TirExpr, extent: Extent, chunk: Chunk) -> RowReader:
    """Packed at each chunk, with zeros behind them up to whole multiplications of a matrix unit."""
    (first, count), left = extent(), context.left
    rows = PackedRows(buffer, first)
    left.pack(context, rows, count, chunk)
    for begin, end in context.surplus(chunk):
        word, zero = i64(left.word_elements(context)), constant(0, str(buffer.dtype), 1)
        with I.serial(i64(0), count) as r, I.serial(begin * word, end * word) as p:
            I.buffer_store(buffer, zero, [r, p])
    return rows


@contextmanager
def _in_image(context: EmitContext, extent: Extent) -> Iterator[Callable[[Chunk], RowReader]]:
    """In a copy of their part of an image, which is made once for all chunks."""
    first, count = extent()
    with context.left.in_image(context, first, I.Bind(count)) as reader:
        yield lambda chunk: reader
