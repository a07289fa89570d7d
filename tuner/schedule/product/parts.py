"""A product on all threads of its task, which compute parts of k (``split_k``) where results are few and sums long.

for t in parallel(threads):                     a part of k beside a share of batches, of row blocks and of panels
  the loops of nest.py, to sums[part]           what they start from, and what they read, is that of the part
for t in parallel(threads):                     a share of the rows, or of the panels where there are fewer rows
  sums[0] + sums[1] + ..., to the output        in this order, whichever thread was first; then the epilogue
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.schedule.loops.shares import Share, on_threads, share_of
from tuner.schedule.product.axes import HEIGHTS, MAX_BLOCK, MAX_VECTORS, TOTAL_BYTES, divisors, parts_of_k
from tuner.schedule.product.context import Chunk, EmitContext
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.product import Place, Product, Result
from tuner.schedule.product.readers import RowReader
from tuner.schedule.product.sources import Each, PanelSource
from tuner.schedule.product.tile import Tile, Use, total_of
from tuner.schedule.space import Axis
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import workspace

MIN_PART = 512
"""Elements of k that are worth a thread of their own."""
FEW_TILES = 4
"""Tiles for a thread from which on sharing them is even enough."""
MAX_PARTIAL_BYTES = 64 * 2**20
"""What sums over parts of k may take. Results that are larger are not few."""
PLAIN = {"mr": 1, "nv": 1, "mb": MAX_BLOCK, "kc": 0, "fetch": 0, "rows": 0, "edge": 0, "pack": 0}
"""The loops over results that are added up: row by row, vector by vector. The instruction is the kernel's own."""


# -- the space ------------------------------------------------------------------------------------------------------
def split_axes(task: SearchTask, product: Product) -> tuple[Axis, ...]:
    """Parts of k that threads compute, where that can matter: k may be long, and results too few for all threads."""
    parts = tuple(each for each in divisors(task.threads) if partial_bytes(task, product, each) <= MAX_PARTIAL_BYTES)
    is_short = product.depth is not None and product.depth < 2 * MIN_PART
    if len(parts) == 1 or is_short or _least_tiles(task, product) >= FEW_TILES * task.threads:
        return ()
    return (Axis("split_k", "parts of k that threads compute, added up at the end", parts, is_optional=True),)


def partial_bytes(task: SearchTask, product: Product, parts: int) -> int:
    """The most that a call allocates for sums over ``parts`` parts of k, over the task's range."""
    sizes = _largest(task, product)
    columns = -(-sizes["n"] // task.known_target.hardware.lanes()) * task.known_target.hardware.lanes()
    return TOTAL_BYTES * parts * sizes.get("b", 1) * sizes["m"] * columns if parts > 1 else 0


def most_partial_bytes(task: SearchTask, product: Product) -> int:
    """``partial_bytes`` of the most parts that there are to choose from."""
    return max((partial_bytes(task, product, axis.choices[-1]) for axis in split_axes(task, product)), default=0)


def _least_tiles(task: SearchTask, product: Product) -> int:
    """Of the largest register tiles, how many there are at the least: one along what is dynamic."""
    widest = {"b": 1, "m": HEIGHTS[-1], "n": MAX_VECTORS * task.known_target.hardware.lanes()}
    sizes = _largest(task, product)
    return math.prod(-(-sizes[role] // widest[role]) for role in set(sizes) & set(widest) - product.dynamic)


def _largest(task: SearchTask, product: Product) -> dict[str, int]:
    """The largest extents over the range, by role."""
    extents = task.workload.axis_sizes(task.largest_dims)
    sizes = product.by_role({axis: np.array([size]) for axis, size in extents.items()})
    return {role: int(size.max()) for role, size in sizes.items()}


# -- code -----------------------------------------------------------------------------------------------------------
def multiply(context: EmitContext) -> None:
    """A product, or a batch of them."""
    threads, parts = context.task.threads, parts_of_k(context.kernel)
    if parts == 1:
        on_threads(threads, Nest(context).share)
        return
    columns = context.whole_vectors(context.extent["n"])
    shape = (i64(parts), context.extent.get("b", i64(1)), context.extent["m"], columns)
    total = total_of(context)
    with workspace(shape, total) as sums:
        partial = PartialResult(sums, dtype=total, computed=context.result.computed)
        on_threads(threads, Nest(replace(context, result=partial)).share)
        values = {**{name: value for name, value in context.kernel.values if name == "group"}, **PLAIN}
        kernel = replace(context.kernel, values=tuple(values.items()))
        product = replace(context.product, pack_of_dots=None)
        on_threads(threads, Sums(replace(context, kernel=kernel, product=product), sums).total)


@dataclass(frozen=True)
class PartialResult(Result):
    """``sums[part, batch, m, n]``, over the steps of a part each."""

    sums: TirExpr

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        assert context.part is not None
        return self.sums, (context.part.index, _batch(context), row)


class Sums(Nest):
    """Writes the loops over results that are added up."""

    def __init__(self, context: EmitContext, sums: TirExpr) -> None:
        super().__init__(context)
        self.sums = sums

    def total(self, thread: TirExpr) -> None:
        """What one thread does: of each product of a batch its share of the rows, or of the panels."""
        threads = self.context.task.threads
        by_row = I.Bind(self.m >= i64(threads))
        rows, panels = share_of(self.m, thread, threads), share_of(self.panels, thread, threads)
        tiles = tuple(I.Bind(tirx.Select(by_row, *each)) for each in zip(rows, (i64(0), self.m), strict=True))
        some = tuple(I.Bind(tirx.Select(by_row, *each)) for each in zip((i64(0), self.panels), panels, strict=True))
        with I.serial(i64(0), self.context.extent.get("b", i64(1))) as index:
            context = self.context.at(index) if "b" in self.context.extent else self.context
            Sums(context, self.sums)._write((tiles[0], tiles[1]), (some[0], some[1]))

    def _write(self, rows: Share, panels: Share) -> None:
        source, is_last = PanelSource(self.context), tirx.IntImm("bool", 0)
        self.blocks(rows, is_last, lambda block: self.block(block, panels, source, _unread))

    def write_tiles(self, strip: Each, chunk: Chunk, rows: RowReader, block: Block) -> None:
        with I.serial(i64(0), block.count) as ordinal:
            row = block.start + ordinal
            strip(lambda panel: SumTile(self.context, panel, chunk, rows, row, 1, sums=self.sums).emit(ordinal))


def _unread(extent: object) -> nullcontext[Callable[[Chunk], RowReader]]:
    """No rows are read."""
    return nullcontext(lambda chunk: RowReader())


@dataclass(eq=False)
class SumTile(Tile):
    """Totals are sums of sums, in the order of the parts."""

    sums: TirExpr = None
    is_unrolled = False

    def clear(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def reduce(self, ordinal: TirExpr) -> None:
        pass

    def each(self, use: Use) -> None:
        for v in range(self.panel.vectors):
            column = I.Bind(self.panel.column + i64(v * self.lanes))
            parts = [
                I.Bind(
                    self.vectors.load(self.sums, (i64(part), _batch(self.context), self.row), column, self.panel.limit)
                )
                for part in range(int(self.sums.shape[0]))
            ]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            use(I.Bind(total), i64(0), i64(v))


def _batch(context: EmitContext) -> TirExpr:
    return i64(0) if context.batch is None else context.batch
