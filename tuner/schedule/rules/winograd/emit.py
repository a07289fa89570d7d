"""TensorIR for convolutions by minimal filtering, F(m x m, 3 x 3):

for block of `lines` rows of tiles:             threads have contiguous shares of all rows
  for channel of the image:
    [tiles are picked from lines of the image]
    [and transformed: V, panels of tiles for each point]
  for point in (m + 2) ** 2:                    or (m + 1) ** 2, and up to four products that are added at each
    for tile of mr rows of the weight:          the register tile
      for panel of nv vectors in block
  for channel of the output:
    [sums are transformed back and written, through the elementwise stages]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import LINE_ELEMENTS
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.loops.shares import Share, on_threads, share_of
from tuner.schedule.product.context import EmitContext, Indexing, Panel, context_of
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.product import DTYPE, Left, Place, Result, Right
from tuner.schedule.product.readers import PackedAhead, RowReader
from tuner.schedule.rules.winograd.transforms import Transforms
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound_unless_known
from tuner.schedule.vector.memory import prefetch, workspace

if TYPE_CHECKING:
    from tuner.schedule.product.sizes import Sizes
    from tuner.schedule.product.tile import Tile
    from tuner.schedule.rules.winograd.filtering import Filtering
    from tuner.schedule.rules.winograd.pattern import Convolution


@dataclass(frozen=True)
class PointRows(Left):
    """The transformed weight, ``tensor[points * kernels, channels]``, of one product, whose number is ``point``."""

    tensor: str
    dtype: str = DTYPE
    point: TirExpr = None
    points: int = 0
    is_packed_ahead = True

    def first_share(self, of: Sizes) -> Floats:
        """Each block reads all of the weight."""
        return np.asarray(self.points / of.products)

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (self.point * context.extent["m"] + row,)


@dataclass(frozen=True)
class PointColumns(Right):
    """Panels of transformed tiles: [points * panels, channels, columns]."""

    dtype: str = DTYPE
    is_packed_ahead = lies_along_n = is_made_in_call = True


@dataclass(frozen=True)
class PointPanel(PackedAhead):
    """A panel of a block at one point. The tiles over the first one prefetch the rows of the next tile, a turn of each
    at a time: rows of few channels are short streams, which no hardware prefetcher follows in time."""

    is_first: TirExpr = None

    def prefetch_next(self, tile: Tile, at: TirExpr) -> None:
        turn = tile.kernel["ahead"]
        turns = max(int(tile.context.extent["k"]) // turn, 1)
        step = bound_unless_known(tirx.truncmod(at, i64(turns)) * i64(turn))
        with I.If(self.is_first), I.Then():
            for r in range(tile.height):
                buffer, place = tile.context.left.row(tile.context, tile.row + i64(tile.kernel["mr"] + r))
                for line in range(0, turn, LINE_ELEMENTS):
                    prefetch(buffer, (*place, step + i64(line) if line else step))


@dataclass(frozen=True)
class PointSums(Result):
    """``buffer[sums * rows, columns]`` at one ``point``. Stages run as they are transformed back."""

    buffer: TirExpr = None
    point: TirExpr = None
    rows: int = 0
    dtype: str = DTYPE
    computed: str = ""
    epilogue: tuple[()] = ()

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return self.buffer, (self.point * i64(self.rows) + row,)


def write(
    task: SearchTask, own: Convolution, lines: int, kernel: MicroKernel, function: KernelFunction, *, by_kernels: bool
) -> None:
    """The body of a kernel. ``lines`` of a block; ``kernel``: the engine's, by which products are computed;
    ``by_kernels``: threads share channels of the output, and not rows of tiles."""
    nr = kernel["nv"] * task.known_target.hardware.lanes()
    panels = -(-lines * own.tiles_in_row // nr)
    extent = {"m": i64(own.kernels), "n": i64(panels * nr), "k": i64(own.channels)}
    context = context_of(task, own.product(lines), kernel, function, extent)
    context = replace(context, indexing=Indexing(own.form, function, task.workload, task.workload))
    rows = I.Bind(context.parts.size(own.form.n[0]) * i64(own.tile_rows))
    tiles = -(-own.kernels // kernel["mr"])

    def share(thread: TirExpr) -> None:
        of_rows, of_tiles = (i64(0), rows), (i64(0), i64(tiles))
        if by_kernels:
            of_tiles = share_of(i64(tiles), thread, task.threads)
        elif task.threads > 1:
            of_rows = share_of(rows, thread, task.threads)
        _share(context, own, lines, panels, of_rows, of_tiles)

    on_threads(task.threads, share)


def _share(context: EmitContext, own: Convolution, lines: int, panels: int, rows: Share, tiles: Share) -> None:
    """The blocks of one thread, of about as many rows of tiles each: its share of the rows, and of the register tiles
    of channels of the output."""
    lanes, (first, last) = context.vectors.lanes, rows
    total = bound_unless_known(last - first)
    blocks = bound_unless_known(tirx.truncdiv(total + i64(lines - 1), i64(lines)))
    width, points = panels * context.nr, own.filtering.points
    with (
        # Panels, rows and points an odd number of cache lines apart: those of a tile fall on different sets of a cache.
        workspace((i64(points * panels), i64(own.channels_apart), i64(context.nr))) as inputs,
        workspace((i64(own.filtering.side**2 * own.kernels_apart), i64((width // lanes | 1) * lanes))) as sums,
        workspace((i64(points), i64(width + lanes))) as picked,
        I.serial(i64(0), blocks) as block,
    ):
        begin, end = (
            bound_unless_known(first + tirx.truncdiv(total * at, tirx.max(blocks, i64(1))))
            for at in (block, block + i64(1))
        )
        transforms = Transforms(context, own, panels, begin, end)
        transforms.forward(picked, inputs)

        def product(number: TirExpr, point: TirExpr, is_first: TirExpr | None) -> None:
            left = PointRows(own.form.left.tensor, point=number)
            result = PointSums(buffer=sums, point=point, rows=own.kernels_apart)
            at_point = replace(context, left=left, result=result)
            _product(at_point, inputs, number * i64(panels), transforms.vectors, tiles, is_first)

        _each_product(own.filtering, product)
        # Bindings and not stack slots, of which TVM removes some that are still read.
        kernels = (I.Bind(tirx.min(tile * i64(context.kernel["mr"]), i64(own.kernels))) for tile in tiles)
        transforms.backward(sums, picked, *kernels)


def _each_product(filtering: Filtering, use: Callable[[TirExpr, TirExpr, TirExpr | None], None]) -> None:
    """Every product of a block: its number, the point whose sums it has, and whether it is the first one there; None
    where all are. Those of a point are next to each other, so that its sums stay in cache.

    With a stride of 2, numbers of even elements come first along each axis, then those of odd ones, which have the
    same points but infinity.
    """
    side = filtering.side
    if filtering.stride == 1:
        with I.serial(i64(0), i64(filtering.points)) as point:
            use(point, point, None)
        return
    with I.serial(i64(0), i64(side)) as i, I.serial(i64(0), i64(side)) as j:
        # Bindings and not stack slots, of which TVM removes some that are still read.
        down, across = (I.Bind(tirx.Select(at < i64(side - 1), i64(2), i64(1))) for at in (i, j))
        with I.serial(i64(0), down) as odd, I.serial(i64(0), across) as odd_across:
            row, column = i + odd * i64(side), j + odd_across * i64(side)
            is_first = I.Bind(tirx.EQ(odd + odd_across, i64(0)))
            use(I.Bind(row * i64(filtering.tile) + column), I.Bind(i * i64(side) + j), is_first)


def _product(
    context: EmitContext, inputs: TirExpr, start: TirExpr, vectors: TirExpr, tiles: Share, is_first: TirExpr | None
) -> None:  # fmt: skip
    """One product of a block: ``vectors`` of ``inputs`` [points * panels, channels, columns] from ``start`` on, and the
    rows of some ``tiles``. It is added to the sums that there are unless ``is_first``."""
    nest, nv = Nest(context), context.kernel["nv"]
    full = I.Bind(tirx.truncdiv(vectors, i64(nv)))
    rest, base = I.Bind(vectors - full * i64(nv)), I.Bind(start)

    def panel(index: TirExpr, width: int) -> Panel:
        reader = PointPanel(inputs, base + index, i64(0), nv, is_first=index == i64(0))
        return Panel(index * i64(context.nr), None, width, index, reader)

    def strip(each: Callable[[Panel], None]) -> None:
        with I.serial(i64(0), full) as index:
            each(panel(index, nv))
        for width in range(1, nv):
            with I.If(rest == i64(width)), I.Then():
                each(panel(full, width))

    (first, last), full_rows = tiles, i64(int(nest.m) // nest.mr)
    rows = Block(first, tirx.max(tirx.min(last, full_rows) - first, i64(0)), last > full_rows)
    chunk = nest.whole if is_first is None else replace(nest.whole, is_first=is_first)
    nest.write_tiles(strip, chunk, RowReader(), rows)
