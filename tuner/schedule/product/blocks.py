"""Constants that are packed in blocks (PackLayout.blocks): for which products, and how a tile reads whole columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.schedule.product.readers import PackedAhead
from tuner.schedule.strassen import FACTORS, FIRST_OF_HALF
from tuner.schedule.tir import TirExpr, i64, tirx

if TYPE_CHECKING:
    from tuner.schedule.product.product import Product
    from tuner.schedule.product.tile import Tile

DTYPE = "float32"
MIN_STEPS = 32
"""Steps of a product of blocks. With fewer, sums of blocks cost more than the multiplications that are saved."""


def has_blocks(product: Product) -> bool:
    """Whether the right operand of a product may be packed in blocks."""
    dtypes = {product.left.dtype, product.right.dtype, product.result.dtype}
    if not product.right.is_packed_ahead or product.has_batch or "n" in product.dynamic or dtypes != {DTYPE}:
        return False
    depth = product.depth or 0
    return depth >= 2 * MIN_STEPS and depth % 2 == 0


@dataclass(frozen=True)
class InBlocks(PackedAhead):
    """Panels of a vector that were packed in blocks (PackLayout.blocks), from an even one on: those of ``index`` in
    ``buffer`` are a pair."""

    def place(self, v: int, width: int) -> tuple[TirExpr, int]:
        return self.index + i64(v // 2) if v > 1 else self.index, 0

    def row_of(self, row: TirExpr, v: int) -> TirExpr:
        return row + i64(FIRST_OF_HALF[v % 2] * self._steps)

    def factors(self, tile: Tile, v: TirExpr) -> TirExpr:
        index, half = self.index + tirx.floordiv(v, i64(2)), tirx.floormod(v, i64(2))
        return self.buffer[(index, i64(FACTORS * self._steps) + half, tile.vectors.ramp(i64(0)))]

    @property
    def _steps(self) -> int:
        """Of a block."""
        return int(self.buffer.shape[1]) // FACTORS
