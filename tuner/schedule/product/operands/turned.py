"""Rows and results that lie the other way round: tensors whose last dims are k and m, or n and m.

Images lie channel by channel. Where their elements are the rows of a product, and the channels its columns, panels are
those of a constant, which was packed ahead, and nothing is gathered; a tile is transposed before it is written
(``tuner.schedule.product.turned``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.program.language.expr import Read
from tuner.schedule.product.context import Chunk, EmitContext, by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.product import Left, Place, Result
from tuner.schedule.product.readers import RowReader
from tuner.schedule.product.sources import Extent
from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from tuner.schedule.loops.estimates import Floats
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.product.tile import Tile


@dataclass(frozen=True)
class TurnedRows(Factors, Left):
    """Rows of a tensor that lies along m: those of a tile are neighbours at each step."""

    is_packed_ahead = False
    is_viewed = True

    def reader(self, context: EmitContext, extent: Extent, chunk: Chunk) -> RowReader:
        return TurnedReader()

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        """A step, along m."""
        return context.in_view(f"{self.tensor} left", k=step)

    def row_stride(self, of: Estimate) -> Floats:
        return 0.0 * of.depth


class TurnedReader(RowReader):
    """The rows of one tile, of ``TurnedRows``."""

    def word(self, tile: Tile, place: TirExpr, step: TirExpr) -> TirExpr:
        left = tile.context.left
        assert isinstance(left, TurnedRows)
        buffer, indices = left.step(tile.context, tile.chunk.first + step)
        return tile.words.of_row(buffer, indices, place)


@dataclass(frozen=True)
class TurnedResult(Result):
    """Results that are written where they belong by vectors along m, once a tile was transposed (turned.py)."""

    is_turned = True

    def column(self, context: EmitContext, column: TirExpr) -> Place:
        """A column, along m."""
        return context.in_view("out", n=column)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        """What an epilogue reads at a column, ``row`` here: m follows the indices in place of n."""
        view, values = context.parts.views[read.tensor], by_role(context.outer, n=row)
        return view.buffer, tuple(values[role] for role in view.roles if role != "m"), "m" in view.roles
