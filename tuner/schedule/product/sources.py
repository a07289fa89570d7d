"""Where a kernel takes rows of the left operand and panels of the right one from: they are read as they lie, packed at
the call, or packed ahead of all calls."""

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
    IN_BLOCKS,
    IN_IMAGE,
    IN_PLACE,
    ROWS_PACKED,
    packed_vectors,
)
from tuner.schedule.product.blocks import InBlocks, ScaledPanel, in_blocks
from tuner.schedule.product.readers import PackedAhead, PackedRows, PackedSlice, PanelReader, RowReader
from tuner.schedule.tir import I, TirExpr, i64
from tuner.schedule.vector.dtypes import constant

if TYPE_CHECKING:
    from tuner.schedule.product.context import Chunk, EmitContext, Panel

Extent = Callable[[], tuple[TirExpr, TirExpr]]
"""Writes which row of a block is its first, and how many it has."""
RowSource = Callable[[Extent], AbstractContextManager[Callable[["Chunk"], "RowReader"]]]
"""From the rows of a block to what reads them at each chunk."""
Each = Callable[[Callable[["Panel"], None]], None]
"""Writes something for each of neighbouring panels."""


# -- rows -------------------------------------------------------------------------------------------------------------
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


# -- panels -----------------------------------------------------------------------------------------------------------
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
class FromBlocks(PanelSource):
    """All is packed in blocks, before all calls."""

    packed: InBlocks

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        index = panel.index * i64(self.context.kernel["nv"])
        reader = ScaledPanel(self.packed.columns, index, i64(0), 1, of_columns=self.packed.factors)
        return replace(panel, reader=reader)


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
    if context.kernel.get("panel") == IN_BLOCKS:
        n, depth = int(context.extent["n"]), context.product.depth or 0
        yield FromBlocks(context, in_blocks(right.packed(context), n, depth, context.vectors.lanes))
    elif right.is_packed_ahead:
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
