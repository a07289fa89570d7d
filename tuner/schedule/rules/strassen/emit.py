"""TensorIR for products by Strassen's scheme:

for block of 2 * mb * mr rows:                  threads have shares of the rows and of the columns
  [rows of the upper half and of the lower one are divided by their factors, and added up: seven sums of blocks]
  for panel of nv pairs of vectors:
    for product in 7:
      for tile of mr rows of a half:            the register tile, over half of k
    [products are added up to both halves of rows and columns, multiplied by factors, and written]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.schedule.loops.shares import Share, on_threads, share_of
from tuner.schedule.product.blocks import in_blocks
from tuner.schedule.product.context import EmitContext, Panel
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.readers import PackedAhead, RowReader
from tuner.schedule.product.tile import Tile, through_epilogue
from tuner.schedule.rules.strassen.pattern import Parts, Products, SumsOfBlocks
from tuner.schedule.rules.strassen.sums import Factors, factors_of, magnitude, signed_sum
from tuner.schedule.strassen import LEFTS, PRODUCTS, RESULTS
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.memory import workspace


@dataclass(frozen=True)
class BlockPanel(PackedAhead):
    """The blocks of a product, of neighbouring pairs of panels ``apart``. Tiles prefetch ``following``: those of the
    next product, or of the next panel's first one."""

    apart: TirExpr = None
    following: BlockPanel | None = None

    def place(self, v: int, width: int) -> tuple[TirExpr, int]:
        return self.index + i64(v) * self.apart if v else self.index, 0

    def prefetch_next(self, tile: Tile, position: TirExpr) -> None:
        if tile.kernel["ahead"] and self.following is not None:
            self.following._prefetch(tile, 0, position)


def write(context: EmitContext, products: EmitContext, parts: Parts) -> None:
    """The body of a kernel. ``context``: of the whole product; ``products``: of the engine's, by which products of
    blocks are computed."""
    columns = context.kernel["tn"]
    nv, rows = context.kernel["nv"], context.task.threads // columns
    panels = i64(-(-parts.pairs // nv))

    def share(thread: TirExpr) -> None:
        row, column = tirx.floordiv(thread, i64(columns)), tirx.floormod(thread, i64(columns))
        of_rows = (i64(0), context.extent["m"]) if rows == 1 else share_of(context.extent["m"], row, rows)
        of_panels = (i64(0), panels) if columns == 1 else share_of(panels, column, columns)
        _Writer(context, products, parts).share(of_rows, of_panels)

    on_threads(context.task.threads, share)


class _Writer:
    """Writes what one thread does."""

    def __init__(self, context: EmitContext, products: EmitContext, parts: Parts) -> None:
        self.context, self.products, self.parts = context, products, parts
        self.vectors, self.lanes = context.vectors, context.vectors.lanes
        self.mr, self.nv, self.steps = context.kernel["mr"], context.kernel["nv"], parts.steps
        self.height = context.kernel["mb"] * self.mr
        # Sums, and products, of a block an odd number of rows apart, and rows an odd number of cache lines.
        self.apart = self.height | 1
        self.packed = in_blocks(context.right.packed(context), parts.columns, 2 * parts.steps, self.lanes)

    def share(self, rows: Share, panels: Share) -> None:
        """Blocks of about as many rows each."""
        first, last = rows
        total = bound_unless_known(last - first)
        blocks = bound_unless_known(tirx.truncdiv(total + i64(2 * self.height - 1), i64(2 * self.height)))
        with (
            workspace((i64(PRODUCTS * self.apart), i64(self._odd(self.steps)))) as self.sums,
            workspace((i64(PRODUCTS * self.apart), i64(self._odd(self.nv * self.lanes)))) as self.buffer,
            workspace((i64(2 * self.height),)) as self.factors,
            I.serial(i64(0), blocks) as block,
        ):
            # Bindings and not stack slots, of which TVM removes some that are still read.
            begin, end = (
                I.Bind(first + tirx.truncdiv(total * at, tirx.max(blocks, i64(1)))) for at in (block, block + i64(1))
            )
            self.begin, self.upper = begin, I.Bind(tirx.truncdiv(end - begin + i64(1), i64(2)))
            self.lower = I.Bind(end - begin - self.upper)
            self._add_rows()
            self._over(panels)

    def _odd(self, elements: int) -> int:
        """So many elements, and more to an odd number of cache lines."""
        return (-(-elements // self.lanes) | 1) * self.lanes

    # -- rows -----------------------------------------------------------------------------------------------------
    def _add_rows(self) -> None:
        """The seven sums of the left operand's blocks."""
        with I.serial(i64(0), self.upper) as row:
            # Without a row below, the last one is added to itself, and not written again.
            below = bound(tirx.min(self.upper + row, self.upper + self.lower - i64(1)))
            halves = [self.begin + row, self.begin + below]
            scales = [self._scaled(at, row + i64(side * self.height)) for side, at in enumerate(halves)]
            with I.serial(i64(0), i64(-(-self.steps // self.lanes))) as step:
                # Behind a half that is no whole vectors are elements of the other one, which no product reads.
                blocks = [
                    bound(self._scaled_vector(at, scale, step * i64(self.lanes) + i64(half * self.steps)))
                    for at, scale in zip(halves, scales, strict=True)
                    for half in range(2)
                ]
                for product, signs in enumerate(LEFTS):
                    place = [i64(product * self.apart) + row, self.vectors.ramp(step * i64(self.lanes))]
                    I.buffer_store(self.sums, signed_sum(signs, blocks), place)

    def _vector(self, row: TirExpr, step: TirExpr) -> TirExpr:
        buffer, place = self.context.left.row(self.context, row)
        limit = i64(2 * self.steps) if self.steps % self.lanes else None
        return self.vectors.load(buffer, place, step, limit)

    def _scaled(self, row: TirExpr, place: TirExpr) -> Factors:
        """Stores the factor of a row."""
        largest, every = I.alloc_buffer((self.lanes,), "int32"), self.vectors.ramp(0)
        I.buffer_store(largest, constant(0, "int32", self.lanes), [every])
        with I.serial(i64(0), i64(-(-2 * self.steps // self.lanes))) as step:
            bits = magnitude(self._vector(row, step * i64(self.lanes)))
            I.buffer_store(largest, tirx.max(largest[every], bits), [every])
        factors = factors_of(bound(self.vectors.across(largest[every], tirx.max)), 1)
        I.buffer_store(self.factors, factors.value, [place])
        return factors

    def _scaled_vector(self, row: TirExpr, factors: Factors, step: TirExpr) -> TirExpr:
        """Zeros of a row that has no factor: others are not to be added to what is no number."""
        value = self._vector(row, step) * tirx.Broadcast(factors.inverse, self.lanes)
        return tirx.Select(tirx.Broadcast(factors.is_finite, self.lanes), value, self.vectors.zero())

    # -- products -------------------------------------------------------------------------------------------------
    def _over(self, panels: Share) -> None:
        """Whole panels, then a narrower one if this share has it."""
        full, rest = divmod(self.parts.pairs, self.nv)
        with I.serial(panels[0], tirx.min(panels[1], i64(full))) as index:
            self._panel(index, self.nv)
        if rest:
            with I.If(tirx.And(panels[0] <= i64(full), panels[1] > i64(full))), I.Then():
                self._panel(i64(full), rest)

    def _panel(self, index: TirExpr, width: int) -> None:
        pair = bound_unless_known(index * i64(self.nv))
        with I.serial(i64(0), i64(PRODUCTS)) as product:
            first, is_last = bound(product * i64(self.apart)), tirx.EQ(product, i64(PRODUCTS - 1))
            following = (
                bound(tirx.Select(is_last, pair + i64(self.nv), pair)),
                bound(tirx.Select(is_last, i64(0), product + i64(1))),
            )
            reader = replace(self._blocks(pair, product), following=self._blocks(*following))
            context = replace(
                self.products,
                extent={**self.products.extent, "m": self.upper},
                left=SumsOfBlocks(self.sums, first),
                result=Products(buffer=self.buffer, first=first),
            )
            nest, panel = Nest(context), Panel(i64(0), None, width, i64(0), reader)
            tiles = I.Bind(tirx.truncdiv(self.upper, i64(self.mr)))

            def strip(each: Callable[[Panel], None], panel: Panel = panel) -> None:
                each(panel)

            nest.write_tiles(strip, nest.whole, RowReader(), Block(i64(0), tiles, tirx.IntImm("bool", 1)))
        self._add_products(pair, width)

    def _blocks(self, pair: TirExpr, product: TirExpr) -> BlockPanel:
        index, apart = self.packed.of_product(pair, product)
        return BlockPanel(self.packed.blocks, bound(index), i64(0), 1, apart=bound(apart))

    # -- results --------------------------------------------------------------------------------------------------
    def _add_products(self, pair: TirExpr, width: int) -> None:
        """The results of a panel."""
        with I.serial(i64(0), self.upper) as row, I.serial(i64(0), i64(width)) as v:
            at = self.vectors.ramp(v * i64(self.lanes))
            products = [bound(self.buffer[i64(number * self.apart) + row, at]) for number in range(PRODUCTS)]
            self._write(0, row, pair + v, products)
            with I.If(row < self.lower), I.Then():
                self._write(1, row, pair + v, products)

    def _write(self, side: int, row: TirExpr, pair: TirExpr, products: Sequence[TirExpr]) -> None:
        """Both halves of the columns, of a row of the upper half or, ``side`` 1, of the lower one."""
        context, columns = self.context, self.parts.columns
        of_row = tirx.Broadcast(self.factors[row + i64(side * self.height)], self.lanes)
        limit = i64(columns) if columns % (2 * self.lanes) else None
        output = bound(self.begin + row + (self.upper if side else i64(0)))
        for half in range(2):
            factors = self.packed.factors[pair * i64(2) + i64(half), self.vectors.ramp(i64(0))]
            value = signed_sum(RESULTS[2 * side + half], products) * (of_row * factors)
            column = bound((pair * i64(2) + i64(half)) * i64(self.lanes))
            value = through_epilogue(context, bound(value), output, column, limit)
            buffer, place = context.result.row(context, output)
            self.vectors.store(buffer, value, place, column, limit)
