"""Operands whose elements are brought together at each call, or read in a padded copy of the image they are in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.axes import IN_COPY
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.operands.columns import COPY_OF_L2, Columns, copy_bytes
from tuner.schedule.product.operands.copied import column_copy
from tuner.schedule.product.operands.gather import gather_panel, gather_rows
from tuner.schedule.product.operands.image import image_rows
from tuner.schedule.product.operands.words import words_of_panel, words_of_rows
from tuner.schedule.product.product import Left, Place, Right
from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from tuner.program.task import SearchTask
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.product.readers import PackedRows, PackedSlice, PanelSource, RowReader


@dataclass(frozen=True)
class GatheredRows(Factors, Left):
    """Rows that are gathered as a block of them is packed: as elements, if a step takes words of several."""

    is_gathered, is_packed_ahead, packs_elements = True, False, True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        raise NotImplementedError("rows are gathered")

    def pack(self, context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
        gather = words_of_rows if context.words.atom.group > 1 else gather_rows
        gather(context, rows, count, chunk)

    def in_image(self, context: EmitContext, first: TirExpr, count: TirExpr) -> AbstractContextManager[RowReader]:
        return image_rows(context, first, count)

    def row_stride(self, of: Estimate) -> Floats:
        return np.zeros_like(super().row_stride(of))


@dataclass(frozen=True)
class GatheredColumns(Factors, Right):
    """Columns that are gathered as a panel is packed. ``columns``: the image that they are windows of, if they are."""

    columns: Columns | None = None
    is_gathered, is_packed_ahead, lies_along_n = True, False, True

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        raise NotImplementedError("columns are gathered")

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        gather = words_of_panel if context.words.atom.group > 1 else gather_panel
        gather(context, panel, to, chunk)

    def in_copy(self, context: EmitContext) -> AbstractContextManager[PanelSource]:
        return column_copy(context)

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        """Panels in a copy stay in L2, and what is streamed is the left operand alone: once for each copy if a block of
        its rows stays there, too, and otherwise for each panel."""
        if self.columns is None:
            return in_place
        most = np.array([[most_columns(of.task, self.columns, int(vectors))] for vectors in of.nv[:, 0]])
        again = of.block_bytes > COPY_OF_L2 * of.hardware.l2_bytes
        passes = np.where(again, of.panels + (of.ragged > 0), np.ceil(of.n / most))
        left = of.rows * of.k * of.words.left_bytes
        return np.where(of.of["pack"] == IN_COPY, passes * left / of.rates.l3_bytes, in_place)


def most_columns(task: SearchTask, columns: Columns, vectors: int) -> int:
    """Columns of a copy, whose panels are so many vectors wide."""
    hardware = task.known_target.hardware
    lanes = hardware.lanes()
    return columns.panels(vectors * lanes, lanes, copy_bytes(hardware)) * vectors * lanes
