"""TensorIR for convolutions by minimal filtering, F(2 x 2, 3 x 3):

for block of `lines` rows of tiles:             threads have contiguous shares of all rows
  for channel of the image:
    [tiles are picked from lines of the image]
    [and transformed: V, 16 panels of tiles]
  for point in 16:
    for tile of mr rows of the weight:          the register tile
      for panel of nv vectors in block
  for channel of the output:
    [sums are transformed back and written, through the elementwise stages]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.program.job.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.shares import on_threads, share_of
from tuner.schedule.product.context import EmitContext, Indexing, Panel, context_of
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_read
from tuner.schedule.product.operands.gathered import in_vectors, store_results
from tuner.schedule.product.product import DTYPE, Left, Place, Result, Right
from tuner.schedule.product.readers import PackedAhead, RowReader
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.memory import shuffled, workspace

if TYPE_CHECKING:
    from tuner.schedule.rules.winograd import Convolution

TAPS, OUTPUTS = 3, 2
"""Along each axis: taps, and outputs of a tile."""
TILE = TAPS + OUTPUTS - 1
POINTS = TILE * TILE
HALF = POINTS // OUTPUTS
"""The row of the buffer where results of the lower lines begin: they are twice as long as its rows."""


@dataclass(frozen=True)
class PointRows(Left):
    """The transformed weight, ``tensor[points * kernels, channels]``, at one ``point`` of a tile."""

    tensor: str
    dtype: str = DTYPE
    point: TirExpr = None
    is_packed_ahead = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (self.point * context.extent["m"] + row,)


@dataclass(frozen=True)
class PointColumns(Right):
    """Panels of transformed tiles: [points * panels, channels, columns]."""

    dtype: str = DTYPE
    is_packed_ahead = lies_along_n = is_made_in_call = True


@dataclass(frozen=True)
class PointSums(Result):
    """``buffer[points * kernels, columns]`` at one ``point``. Stages run as they are transformed back."""

    buffer: TirExpr = None
    point: TirExpr = None
    dtype: str = DTYPE
    computed: str = ""
    epilogue: tuple[()] = ()

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return self.buffer, (self.point * context.extent["m"] + row,)


def write(task: SearchTask, own: Convolution, lines: int, kernel: MicroKernel, function: KernelFunction) -> None:
    """The body of a kernel. ``lines`` of a block; ``kernel``: the engine's, by which products are computed."""
    nr = kernel["nv"] * task.known_target.hardware.lanes()
    panels = -(-lines * own.tiles_in_row // nr)
    extent = {"m": i64(own.kernels), "n": i64(panels * nr), "k": i64(own.channels)}
    context = context_of(task, own.product(lines), kernel, function, extent)
    context = replace(context, indexing=Indexing(own.form, function, task.workload, task.workload))
    rows = I.Bind(context.parts.size(own.form.n[0]) * i64(own.tile_rows))
    on_threads(task.threads, lambda thread: _share(context, own, lines, panels, rows, thread))


def _share(context: EmitContext, own: Convolution, lines: int, panels: int, rows: TirExpr, thread: TirExpr) -> None:
    """The blocks of one thread, of about as many rows of tiles each."""
    threads, lanes = context.task.threads, context.vectors.lanes
    first, last = share_of(rows, thread, threads) if threads > 1 else (i64(0), rows)
    total = bound_unless_known(last - first)
    blocks = bound_unless_known(tirx.truncdiv(total + i64(lines - 1), i64(lines)))
    width = panels * context.nr
    with (
        workspace((i64(POINTS * panels), i64(own.channels), i64(context.nr))) as inputs,
        # Rows an odd number of cache lines apart.
        workspace((i64(POINTS * own.kernels), i64((width // lanes | 1) * lanes))) as sums,
        workspace((i64(POINTS), i64(width + lanes))) as picked,
        I.serial(i64(0), blocks) as block,
    ):
        begin, end = (
            bound_unless_known(first + tirx.truncdiv(total * at, tirx.max(blocks, i64(1))))
            for at in (block, block + i64(1))
        )
        transforms = _Transforms(context, own, panels, begin, end)
        transforms.forward(picked, inputs)
        with I.serial(i64(0), i64(POINTS)) as point:
            left, result = PointRows(own.form.left.tensor, point=point), PointSums(buffer=sums, point=point)
            at_point = replace(context, left=left, result=result)
            _product(at_point, inputs, point * i64(panels), transforms.vectors)
        transforms.backward(sums, picked)


def _product(context: EmitContext, inputs: TirExpr, start: TirExpr, vectors: TirExpr) -> None:
    """One product of a block: ``vectors`` of ``inputs`` [points * panels, channels, columns] from ``start`` on."""
    nest, nv = Nest(context), context.kernel["nv"]
    full = I.Bind(tirx.truncdiv(vectors, i64(nv)))
    rest, base = I.Bind(vectors - full * i64(nv)), I.Bind(start)

    def panel(index: TirExpr, width: int) -> Panel:
        return Panel(index * i64(context.nr), None, width, index, PackedAhead(inputs, base + index, i64(0), nv))

    def strip(each: Callable[[Panel], None]) -> None:
        with I.serial(i64(0), full) as index:
            each(panel(index, nv))
        for width in range(1, nv):
            with I.If(rest == i64(width)), I.Then():
                each(panel(full, width))

    rows = Block(i64(0), i64(int(nest.m) // nest.mr), tirx.IntImm("bool", 1))
    nest.write_tiles(strip, nest.whole, RowReader(), rows)


# -- transforms --------------------------------------------------------------------------------------------------------
class _Transforms:
    """The transforms of a block: rows ``begin`` to ``end`` of tiles of all images, one after the other."""

    def __init__(
        self, context: EmitContext, convolution: Convolution, panels: int, begin: TirExpr, end: TirExpr
    ) -> None:
        self.context, self.own, self.panels = context, convolution, panels
        self.begin, self.rows = begin, bound_unless_known(end - begin)
        self.lanes, self.in_row = context.vectors.lanes, convolution.tiles_in_row
        tiles = self.rows * i64(self.in_row)
        self.vectors = bound_unless_known(tirx.truncdiv(tiles + i64(self.lanes - 1), i64(self.lanes)))

    # -- forward --------------------------------------------------------------------------------------------------
    def forward(self, picked: TirExpr, inputs: TirExpr) -> None:
        """The tiles, transformed: ``inputs`` [POINTS * panels, channels, columns]. ``picked`` [POINTS, tiles] has the
        elements of tiles of one channel."""
        self._clear_rest(picked)
        with I.serial(i64(0), i64(self.own.channels)) as channel:
            with I.serial(i64(0), self.rows) as row:
                self._pick(picked, channel, row)
            with I.serial(i64(0), self.vectors) as vector:
                self._transform(picked, inputs, channel, vector)

    def _clear_rest(self, picked: TirExpr) -> None:
        """Zero past the last tile, where no row stores anything. Memory that nobody wrote may hold denormal numbers,
        with which many CPUs compute far slower."""
        last = bound_unless_known(tirx.max(self.vectors - i64(1), i64(0)) * i64(self.lanes))
        with I.serial(i64(0), i64(POINTS)) as point:
            I.buffer_store(picked, self.context.vectors.zero(), [point, self.context.vectors.ramp(last)])

    def _pick(self, picked: TirExpr, channel: TirExpr, row: TirExpr) -> None:
        """The elements of a row of tiles. The next row overwrites what is stored past its last tile, or it is spare."""
        (image, down), columns = self._of_row(row), self.own.columns
        sizes = self.context.parts.sizes_of(columns.read.tensor)
        at = [sizes[position] for position in columns.at]
        _, first_line, first_column = (dim.first for dim in columns.dims)
        for i in range(TILE):
            y = bound_unless_known(down * i64(OUTPUTS) + i64(i + first_line))
            end = end_inside([image, y], at[:2], at[2])
            for v in _each(-(-self.in_row // self.lanes)):
                to = self.context.vectors.ramp(row * i64(self.in_row) + v * i64(self.lanes))
                for j in range(0, TILE, OUTPUTS):
                    x = bound_unless_known(v * i64(OUTPUTS * self.lanes) + i64(j + first_column))
                    pair = [self._line(channel, image, y, x + i64(half * self.lanes), end) for half in range(2)]
                    for odd in range(OUTPUTS):
                        value = bound(shuffled(pair, [2 * lane + odd for lane in range(self.lanes)]))
                        I.buffer_store(picked, value, [i64(i * TILE + j + odd), to])

    def _line(self, channel: TirExpr, image: TirExpr, y: TirExpr, x: TirExpr, end: TirExpr) -> TirExpr:
        columns, mask = self.own.columns, lanes_inside(x, end, self.lanes)
        at = dict(zip(columns.at, (image, y, self.context.vectors.ramp(x)), strict=True))
        return bound(padded_read(self.context, columns.read, {columns.channel: channel}, at, mask))

    def _transform(self, picked: TirExpr, inputs: TirExpr, channel: TirExpr, vector: TirExpr) -> None:
        """B^T d B of a vector of tiles."""
        ramp = self.context.vectors.ramp
        at = vector * i64(self.lanes)
        d = [[bound(picked[i64(i * TILE + j), ramp(at)]) for j in range(TILE)] for i in range(TILE)]
        nv = self.context.kernel["nv"]
        panel = bound_unless_known(tirx.truncdiv(vector, i64(nv)))
        column = bound_unless_known((vector - panel * i64(nv)) * i64(self.lanes))
        for point, value in enumerate(_both(d, _input)):
            I.buffer_store(inputs, value, [i64(point * self.panels) + panel, channel, ramp(column)])

    # -- backward -------------------------------------------------------------------------------------------------
    def backward(self, sums: TirExpr, lines: TirExpr) -> None:
        """Sums [POINTS * kernels, tiles], transformed back and written. ``lines``: space for the results of one kernel,
        those of the upper lines of tiles and of the lower ones."""
        with I.serial(i64(0), i64(self.own.kernels)) as kernel:
            with I.serial(i64(0), self.vectors) as vector:
                self._transform_back(sums, lines, kernel, vector)
            with I.serial(i64(0), self.rows) as row:
                self._write(lines, kernel, row)

    def _transform_back(self, sums: TirExpr, lines: TirExpr, kernel: TirExpr, vector: TirExpr) -> None:
        """A^T m A of a vector of tiles, whose outputs are neighbours along a line."""
        ramp, at = self.context.vectors.ramp, vector * i64(self.lanes)
        rows = [[i64((i * TILE + j) * self.own.kernels) + kernel for j in range(TILE)] for i in range(TILE)]
        results = _both([[bound(sums[row, ramp(at)]) for row in line] for line in rows], _output)
        for half in range(OUTPUTS):
            pair = results[half * OUTPUTS : (half + 1) * OUTPUTS]
            for part in range(OUTPUTS):
                taken = [lane // OUTPUTS + part * self.lanes // OUTPUTS for lane in range(self.lanes)]
                lanes = [tile + lane % OUTPUTS * self.lanes for lane, tile in enumerate(taken)]
                value = bound(shuffled(pair, lanes))
                place = ramp((vector * i64(OUTPUTS) + i64(part)) * i64(self.lanes))
                I.buffer_store(lines, value, [i64(half * HALF), place])

    def _write(self, lines: TirExpr, kernel: TirExpr, row: TirExpr) -> None:
        context, own = self.context, self.own
        (of_kernels,), (of_images, of_lines, of_columns) = own.form.m, own.form.n
        image, down = self._of_row(row)
        lanes = self.lanes if in_vectors(context) else 1
        for half in range(OUTPUTS):
            y = bound_unless_known(down * i64(OUTPUTS) + i64(half))
            with ExitStack() as guard:
                if half and own.height % OUTPUTS:
                    guard.enter_context(I.If(y < i64(own.height)))
                    guard.enter_context(I.Then())
                with I.serial(i64(0), i64(-(-own.width // lanes))) as v:
                    x = I.Bind(v * i64(lanes))
                    values = {of_kernels: kernel, of_images: image, of_lines: y, of_columns: x}
                    place = i64(half * HALF), row * i64(OUTPUTS * self.in_row) + x
                    store_results(context, values, lines, place, i64(own.width), lanes)

    def _of_row(self, row: TirExpr) -> tuple[TirExpr, TirExpr]:
        """The image, and the row of tiles in it."""
        row = bound_unless_known(self.begin + row)
        image = bound_unless_known(tirx.truncdiv(row, i64(self.own.tile_rows)))
        return image, bound_unless_known(row - image * i64(self.own.tile_rows))


def _each(count: int) -> Iterator[TirExpr]:
    """The numbers below ``count``, without a loop where there is one."""
    if count == 1:
        yield i64(0)
        return
    with I.serial(i64(0), i64(count)) as number:
        yield number


def _both(square: Sequence[Sequence[TirExpr]], along: Callable[[Sequence[TirExpr]], list[TirExpr]]) -> list[TirExpr]:
    """A transform along the columns of a square, then along its rows: row by row."""
    columns = [along([line[j] for line in square]) for j in range(TILE)]
    return [value for i in range(len(columns[0])) for value in along([column[i] for column in columns])]


def _input(d: Sequence[TirExpr]) -> list[TirExpr]:
    """B^T of F(2, 3)."""
    return [bound(d[0] - d[2]), bound(d[1] + d[2]), bound(d[2] - d[1]), bound(d[1] - d[3])]


def _output(m: Sequence[TirExpr]) -> list[TirExpr]:
    """A^T of F(2, 3)."""
    return [bound(bound(m[0] + m[1]) + m[2]), bound(bound(m[1] - m[2]) - m[3])]
