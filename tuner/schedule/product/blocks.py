"""Constants that are packed in blocks (PackLayout.blocks): for which products, and how a tile reads whole columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.schedule.product.readers import PackedAhead
from tuner.schedule.strassen import BLOCKS_OF_PAIR, FIRST_BLOCK, LAST_BLOCK, PRODUCTS, SUMS
from tuner.schedule.tir import TirExpr, i64, tirx
from tuner.schedule.vector.memory import DTYPE, part_of

if TYPE_CHECKING:
    from tuner.schedule.product.product import Product
    from tuner.schedule.product.tile import Tile

MIN_STEPS = 48
"""Steps of a product of blocks. With fewer, sums of blocks cost more than the multiplications that are saved: of
products of 96 and 64 steps the best kernels took 0.99 and 1.04 times as long as those that multiply all (Zen 4)."""


def has_blocks(product: Product) -> bool:
    """Whether the right operand of a product may be packed in blocks."""
    dtypes = {product.left.dtype, product.right.dtype, product.result.dtype}
    if not product.right.is_packed_ahead or product.has_batch or "n" in product.dynamic or dtypes != {DTYPE}:
        return False
    depth = product.depth or 0
    return depth >= 2 * MIN_STEPS and depth % 2 == 0


@dataclass(frozen=True)
class InBlocks:
    """What is packed of a constant (PackLayout.blocks): ``columns`` [panels, k, panel]; ``blocks``, of half as many
    steps each: those of the columns, and behind them sums; ``factors`` [panels, panel]. ``pairs`` of panels."""

    columns: TirExpr
    blocks: TirExpr
    factors: TirExpr
    pairs: int

    def of_product(self, pair: TirExpr, product: TirExpr) -> tuple[TirExpr, TirExpr]:
        """The block that a product reads of a pair of panels, and how far that of the next pair is."""
        is_first, is_last = tirx.EQ(product, i64(0)), tirx.EQ(product, i64(PRODUCTS - 1))
        apart = tirx.Select(tirx.Or(is_first, is_last), i64(BLOCKS_OF_PAIR), i64(len(SUMS)))
        first = tirx.Select(
            is_first,
            i64(FIRST_BLOCK),
            tirx.Select(is_last, i64(LAST_BLOCK), i64(BLOCKS_OF_PAIR * self.pairs - 1) + product),
        )
        return first + pair * apart, apart


def in_blocks(buffer: TirExpr, columns: int, steps: int, lanes: int) -> InBlocks:
    """The parts of ``buffer``, a constant of so many columns and steps, in panels of a vector."""
    pairs, half = -(-columns // (2 * lanes)), steps // 2
    blocks = (BLOCKS_OF_PAIR + len(SUMS)) * pairs
    return InBlocks(
        part_of(buffer, 0, (2 * pairs, steps, lanes)),
        part_of(buffer, 0, (blocks, half, lanes)),
        part_of(buffer, blocks * half * lanes, (2 * pairs, lanes)),
        pairs,
    )


@dataclass(frozen=True)
class ScaledPanel(PackedAhead):
    """A panel whose columns were divided by ``of_columns`` [panels, panel]."""

    of_columns: TirExpr = None

    def factors(self, tile: Tile, v: TirExpr) -> TirExpr:
        return self.of_columns[self.index + v, tile.vectors.ramp(i64(0))]
