"""Rows of the left operand and panels of the right one: where a kernel takes them from, and how a tile reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.axes import (
    AT_ONCE,
    BY_BLOCK,
    IN_IMAGE,
    IN_PLACE,
    ROWS_PACKED,
    packed_vectors,
    panels_of_strip,
)
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, lanes_of
from tuner.schedule.vector.memory import IN_L1, IN_L2, prefetch

if TYPE_CHECKING:
    from tuner.schedule.product.atom import Words
    from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run
    from tuner.schedule.product.tile import Tile

Extent = Callable[[], tuple[TirExpr, TirExpr]]
"""Writes which row of a block is its first, and how many it has."""
RowSource = Callable[[Extent], AbstractContextManager[Callable[["Chunk"], "RowReader"]]]
"""From the rows of a block to what reads them at each chunk."""
Each = Callable[[Callable[["Panel"], None]], None]
"""Writes something for each of neighbouring panels."""


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
        yield lambda extent: nullcontext(partial(context.left.reader, context, extent))


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


# -- where a kernel takes panels from ---------------------------------------------------------------------------------
@dataclass
class PanelSource:
    """The panels of one product: as they lie, where a subclass does not say otherwise."""

    context: EmitContext

    def groups(self, panels: Share, use: Callable[[Share], None]) -> None:
        """So many panels at a time as can be supplied together."""
        use(panels)

    def prepare(self, each: Each, whole: Chunk) -> None:
        """What is done for all panels before the first row."""

    def opened(self, panel: Panel) -> Panel:
        """The panel before its first chunk."""
        return panel

    def refill(self, each: Each, chunk: Chunk) -> None:
        """What is done for some panels before a block of rows goes over them."""

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        """The panel with what reads it at a chunk."""
        return replace(panel, reader=PanelReader())


class FromAhead(PanelSource):
    """All is packed, before all calls."""

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        right, context = self.context.right, self.context
        vectors = packed_vectors(context.kernel)
        index = panel.index * i64(context.kernel["nv"] // vectors) + right.first_panel(context)
        return replace(panel, reader=PackedAhead(right.packed(context), index, i64(0), vectors))


@dataclass
class PackedAtCall(PanelSource):
    """Each panel is packed before the rows of a block use it; or, if there is a ``start``, all panels of a share from
    that one on before its first row."""

    buffer: TirExpr
    start: TirExpr | None = None

    def prepare(self, each: Each, whole: Chunk) -> None:
        if self.start is not None:
            each(lambda panel: self._pack(panel, whole))

    def refill(self, each: Each, chunk: Chunk) -> None:
        if self.start is None:
            each(lambda panel: self._pack(panel, chunk))

    def _pack(self, panel: Panel, chunk: Chunk) -> None:
        to = self._slice(panel, chunk)
        self.context.right.pack(self.context, panel, to, chunk)
        # Zeros behind the last steps, up to whole multiplications of a matrix unit.
        for begin, end in self.context.surplus(chunk):
            before, zero = chunk.first - to.first, constant(0, str(to.buffer.dtype), 1)
            with I.serial(begin, end) as step, I.serial(i64(0), to.buffer.shape[-1]) as column:
                I.buffer_store(to.buffer, zero, [to.index, before + step, column])

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        return replace(panel, reader=self._slice(panel, chunk))

    def _slice(self, panel: Panel, chunk: Chunk) -> PackedSlice:
        if self.start is None:
            return PackedSlice(self.buffer, i64(0), chunk.first, self.context.kernel["nv"])
        return PackedSlice(self.buffer, panel.index - self.start, self.context.steps.first, self.context.kernel["nv"])


@contextmanager
def panel_source(context: EmitContext, panels: Share, longest: TirExpr) -> Iterator[PanelSource]:
    """Where the kernel of ``context`` takes the panels of a share from; ``longest``: steps of its longest chunk."""
    right, pack = context.right, context.kernel["pack"]
    if right.is_packed_ahead:
        yield FromAhead(context)
    elif pack == IN_PLACE:
        yield PanelSource(context)
    elif pack == BY_BLOCK:
        with right.room(context, i64(1), longest) as buffer:
            yield PackedAtCall(context, buffer)
    elif pack == AT_ONCE:
        with right.room(context, panels[1] - panels[0], context.steps.length) as buffer:
            yield PackedAtCall(context, buffer, panels[0])
    else:
        with right.in_copy(context) as source:
            yield source
