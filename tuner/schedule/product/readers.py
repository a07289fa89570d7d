"""How a tile reads rows of the left operand and panels of the right one: as they lie, or where they are packed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.schedule.product.axes import panels_of_strip
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import lanes_of
from tuner.schedule.vector.memory import IN_L1, IN_L2, prefetch

if TYPE_CHECKING:
    from tuner.schedule.product.atom import Words
    from tuner.schedule.product.context import Run
    from tuner.schedule.product.tile import Tile


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

    def along_k(self, tile: Tile, place: TirExpr, step: TirExpr, limit: TirExpr | None) -> TirExpr:
        """A vector of neighbouring steps of a row, zero from step ``limit`` of the chunk on."""
        buffer, indices = tile.context.left.row(tile.context, place)
        end = None if limit is None else tile.chunk.first + limit
        return tile.vectors.load(buffer, indices, tile.chunk.first + step, end)


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

    def along_k(self, tile: Tile, place: TirExpr, step: TirExpr, limit: TirExpr | None) -> TirExpr:
        return tile.vectors.load(self.buffer, (place,), step, limit)


def places_from(tile: Tile, first: TirExpr, last: TirExpr) -> list[TirExpr]:
    """The places of a tile's rows from ``first`` on, none of them past ``last``."""
    index = [first + i64(number) for number in range(tile.height)]
    if tile.valid is None:
        return index
    last = bound(last)
    return [bound(tirx.min(each, last)) for each in index]


# -- how a tile reads a panel -----------------------------------------------------------------------------------------
class PanelReader:
    """The right operand at the columns of one panel: as it lies, where a subclass does not say otherwise."""

    def runs(self, tile: Tile) -> AbstractContextManager[Run] | None:
        """The runs of the tile's chunk that the operand lies in; None: it is one."""
        return None

    def at_step(self, run: Run, step: TirExpr) -> PanelReader:
        """The reader of one step of a run."""
        return self

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` at one step of the chunk, as the instruction takes it."""
        buffer, place = tile.context.right.step(tile.context, tile.chunk.first + step)
        value = tile.vectors.load(buffer, place, tile.panel.column + i64(v * tile.lanes), tile.panel.limit)
        return tile.words.taken(value, tile.words.right)

    def compensation(self, tile: Tile, v: int) -> TirExpr | None:
        """What stands in front of the steps of vector ``v``."""
        return None

    def factors(self, tile: Tile, v: TirExpr) -> TirExpr | None:
        """What the sums of vector ``v`` are multiplied by."""
        return None

    def prefetch_step(self, tile: Tile, step: TirExpr) -> None:
        """Ask for a later step of this panel (``near``)."""

    def prefetch_next(self, tile: Tile, position: TirExpr) -> None:
        """Ask for one row of the next panel (``ahead``)."""


@dataclass(frozen=True)
class PackedSlice(PanelReader):
    """The panel of a tile from ``index`` on in ``buffer`` [panels, k, columns], whose row 0 stands for k = ``first``.

    ``vectors`` in a row of a panel of the buffer: those of a full tile, or one; a tile then reads neighbouring panels.
    """

    buffer: TirExpr
    index: TirExpr
    first: TirExpr
    vectors: int

    def place(self, v: int, width: int) -> tuple[TirExpr, int]:
        """Where vector ``v`` of a row begins, of so many elements: the panel of the buffer, and the element there."""
        panels, vectors = divmod(v, self.vectors)
        return self.index + i64(panels) if panels else self.index, vectors * width

    def load(self, words: Words, row: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a row."""
        index, first = self.place(v, words.width)
        return self.buffer[(index, row, tirx.Ramp(i64(first), i64(1), words.width))]

    def store(self, value: TirExpr, row: TirExpr, v: TirExpr) -> None:
        """``value`` as vector ``v`` of a row."""
        width = lanes_of(value)
        I.buffer_store(self.buffer, value, [self.index, row, tirx.Ramp(v * i64(width), i64(1), width)])

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        return self.load(tile.words, self._row(tile, step), v)

    def compensation(self, tile: Tile, v: int) -> TirExpr | None:
        return self.load(tile.words, i64(0), v) if tile.words.compensation else None

    def prefetch_step(self, tile: Tile, step: TirExpr) -> None:
        if tile.kernel["near"]:
            self._prefetch(tile, 0, step + i64(tile.kernel["near"]))

    def prefetch_next(self, tile: Tile, position: TirExpr) -> None:
        # Spread over the tiles of this panel: a row of that of the next strip for each group of steps. The last panel
        # runs past the end of the buffer, which costs a wasted prefetch and no fault.
        if tile.kernel["ahead"]:
            self._prefetch(tile, panels_of_strip(tile.kernel), position)

    def _prefetch(self, tile: Tile, panels: int, step: TirExpr) -> None:
        """A row of the tile that is so many panels on. The tiles of a matrix unit fill L1 without it."""
        locality = IN_L1 if tile.atom.unit is None else IN_L2
        for v in range(tile.panel.vectors):
            index, first = self.place(v, tile.words.width)
            index = index + i64(panels * (tile.kernel["nv"] // self.vectors)) if panels else index
            prefetch(self.buffer, (index, self._row(tile, step), i64(first)), locality=locality)

    def _row(self, tile: Tile, step: TirExpr) -> TirExpr:
        return tile.chunk.first - self.first + step + i64(tile.words.compensation)


class PackedAhead(PackedSlice):
    """A panel of an operand that was packed ahead of all calls."""

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        return tile.context.right.packed_vector(tile.context, tile.panel, self, self._row(tile, step), v)
