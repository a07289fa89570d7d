"""Operands whose axes are grouped: packed before all calls, or gathered at each one, or read in a padded copy of the
image that they are windows of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.schedule.loops.estimates import Floats
from tuner.schedule.loops.shares import number_of
from tuner.schedule.product.axes import IN_COPY
from tuner.schedule.product.indexing import by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.match.parts import outer_role
from tuner.schedule.product.operand import Left, Place, Right
from tuner.schedule.product.operands.columns import COPY_OF_L2, ColumnCopy, Columns
from tuner.schedule.product.operands.gather import gather_panel, gather_rows
from tuner.schedule.product.operands.image import image_rows
from tuner.schedule.product.operands.word_panels import words_of_panel
from tuner.schedule.product.operands.word_rows import room_for_rows, words_of_rows
from tuner.schedule.signature import i64
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.memory import workspace

if TYPE_CHECKING:
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.product.panels import PackedSlice, PanelSource
    from tuner.schedule.product.rows import PackedRows, RowReader


# -- packed ahead -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AheadRows(Factors, Left):
    """Rows as ``PackLayout`` packs them: [outer parts and m, k]."""

    is_packed_ahead = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (_outer(context, self.roles) * context.extent["m"] + row,)


@dataclass(frozen=True)
class AheadColumns(Factors, Right):
    """Columns as ``PackLayout`` packs them: [outer parts and panels, k, nr]."""

    is_packed_ahead = True
    lies_along_n = True

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]

    def first_panel(self, context: EmitContext) -> TirExpr | None:
        if len(self.roles) == 2:
            return None
        return _outer(context, self.roles) * context.panels


def _outer(context: EmitContext, roles: tuple[str, ...]) -> TirExpr:
    """The flattened index of an operand's outer parts."""
    sizes = {outer_role(name): context.parts.size(name) for name in context.outer}
    return number_of(by_role(context.outer), {role: sizes[role] for role in roles[:-2]})


# -- gathered ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GatheredRows(Factors, Left):
    """Rows that are gathered as a block of them is packed: as elements, if a step takes words of several."""

    is_gathered, is_packed_ahead = True, False

    def room(self, context: EmitContext, rows: int, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        make = room_for_rows if context.words.atom.group > 1 else super().room
        return make(context, rows, steps)

    def pack(self, context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
        gather = words_of_rows if context.words.atom.group > 1 else gather_rows
        gather(context, rows, count, chunk)

    def packed_word(self, context: EmitContext, packed: TirExpr, row: TirExpr, step: TirExpr) -> TirExpr:
        group = context.words.atom.group
        if group == 1:
            return super().packed_word(context, packed, row, step)
        return tirx.reinterpret("int32", packed[row, tirx.Ramp(step * i64(group), i64(1), group)])

    def in_image(self, context: EmitContext, first: TirExpr, count: TirExpr) -> AbstractContextManager[RowReader]:
        return image_rows(context, first, count)

    def row_stride(self, of: Estimate) -> Floats:
        return np.zeros_like(super().row_stride(of))


@dataclass(frozen=True)
class GatheredColumns(Factors, Right):
    """Columns that are gathered as a panel is packed. ``columns``: the image that they are windows of, if they are."""

    columns: Columns | None = None
    is_gathered, is_packed_ahead, lies_along_n = True, False, True

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        gather = words_of_panel if context.words.atom.group > 1 else gather_panel
        gather(context, panel, to, chunk)

    @contextmanager
    def in_copy(self, context: EmitContext) -> Iterator[PanelSource]:
        copy = ColumnCopy(context)
        with workspace((i64(copy.columns.channels * copy.plane),)) as copy.packed:
            yield copy

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        """Panels in a copy stay in L2, and what is streamed is the left operand alone: once for each copy if a block of
        its rows stays there, too, and otherwise for each panel."""
        if self.columns is None:
            return in_place
        most = np.array([[self.columns.most(int(width), of.hardware)] for width in of.nr[:, 0]])
        again = of.block_bytes > COPY_OF_L2 * of.hardware.l2_bytes
        passes = np.where(again, of.panels + (of.ragged > 0), np.ceil(of.n / most))
        left = of.rows * of.k * of.words.left_bytes
        return np.where(of.of["pack"] == IN_COPY, passes * left / of.rates.l3_bytes, in_place)
