"""The transforms of minimal filtering: of tiles of the image, and back of the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_read
from tuner.schedule.product.operands.scatter import in_vectors, store_results
from tuner.schedule.rules.winograd.pattern import OUTPUTS, POINTS, TILE, Convolution
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known

HALF = POINTS // OUTPUTS
"""The row of the buffer where results of the lower lines begin: they are twice as long as its rows."""


class Transforms:
    """Those of a block of tiles: rows ``begin`` to ``end`` of tiles of all images, one after the other."""

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
        with I.serial(i64(0), i64(self.own.channels)) as channel:
            with I.serial(i64(0), self.rows) as row:
                self._pick(picked, channel, row)
            with I.serial(i64(0), self.vectors) as vector:
                self._transform(picked, inputs, channel, vector)

    def _pick(self, picked: TirExpr, channel: TirExpr, row: TirExpr) -> None:
        """The elements of a row of tiles. What is stored past its last tile is overwritten by the next row, or lies in
        the space behind."""
        image, down = self._of_row(row)
        columns, sizes = self.own.columns, self.context.parts.sizes_of(self.own.columns.read.tensor)
        at = [sizes[position] for position in columns.at]
        across = columns.dims[2].first
        for i in range(TILE):
            y = bound_unless_known(down * i64(OUTPUTS) + i64(i + columns.dims[1].first))
            end = end_inside([image, y], at[:2], at[2])

            def vector(v: TirExpr, i: int = i, y: TirExpr = y, end: TirExpr = end) -> None:
                to = self.context.vectors.ramp(row * i64(self.in_row) + v * i64(self.lanes))
                for j in range(0, TILE, OUTPUTS):
                    x = bound_unless_known(v * i64(OUTPUTS * self.lanes) + i64(j + across))
                    pair = [self._line(channel, image, y, x + i64(half * self.lanes), end) for half in range(2)]
                    for odd in range(OUTPUTS):
                        value = shuffled(pair, [2 * lane + odd for lane in range(self.lanes)])
                        I.buffer_store(picked, value, [i64(i * TILE + j + odd), to])

            if self.in_row <= self.lanes:
                vector(i64(0))
                continue
            with I.serial(i64(0), i64(-(-self.in_row // self.lanes))) as v:
                vector(v)

    def _line(self, channel: TirExpr, image: TirExpr, y: TirExpr, x: TirExpr, end: TirExpr) -> TirExpr:
        """A vector of a line of the image from ``x`` on, padded."""
        columns, mask = self.own.columns, lanes_inside(x, end, self.lanes)
        at = dict(zip(columns.at, (image, y, self.context.vectors.ramp(x)), strict=True))
        return bound(padded_read(self.context, columns.read, {columns.channel: channel}, at, mask))

    def _transform(self, picked: TirExpr, inputs: TirExpr, channel: TirExpr, vector: TirExpr) -> None:
        """B^T d B of a vector of tiles."""
        ramp = self.context.vectors.ramp
        d = [
            [bound(picked[i64(i * TILE + j), ramp(vector * i64(self.lanes))]) for j in range(TILE)] for i in range(TILE)
        ]
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
        m = [
            [bound(sums[i64((i * TILE + j) * self.own.kernels) + kernel, ramp(at)]) for j in range(TILE)]
            for i in range(TILE)
        ]
        results = _both(m, _output)
        for half in range(OUTPUTS):
            pair = results[half * OUTPUTS : (half + 1) * OUTPUTS]
            for part in range(OUTPUTS):
                taken = [lane // OUTPUTS + part * self.lanes // OUTPUTS for lane in range(self.lanes)]
                value = shuffled(pair, [at + lane % OUTPUTS * self.lanes for lane, at in enumerate(taken)])
                I.buffer_store(
                    lines, value, [i64(half * HALF), ramp((vector * i64(OUTPUTS) + i64(part)) * i64(self.lanes))]
                )

    def _write(self, lines: TirExpr, kernel: TirExpr, row: TirExpr) -> None:
        """The two lines of a row of tiles, through the elementwise stages."""
        context, own = self.context, self.own
        (of_kernels,), (of_images, of_lines, of_columns) = own.form.m, own.form.n
        image, down = self._of_row(row)
        lanes = self.lanes if in_vectors(context) else 1
        for half in range(OUTPUTS):
            y = bound_unless_known(down * i64(OUTPUTS) + i64(half))

            def line(y: TirExpr = y, half: int = half) -> None:
                with I.serial(i64(0), i64(-(-own.width // lanes))) as v:
                    x = I.Bind(v * i64(lanes))
                    values = {of_kernels: kernel, of_images: image, of_lines: y, of_columns: x}
                    place = i64(half * HALF), row * i64(OUTPUTS * self.in_row) + x
                    store_results(context, values, lines, place, i64(own.width), lanes)

            if half and own.height % OUTPUTS:
                with I.If(y < i64(own.height)), I.Then():
                    line()
            else:
                line()

    def _of_row(self, row: TirExpr) -> tuple[TirExpr, TirExpr]:
        """The image, and the row of tiles in it."""
        row = bound_unless_known(self.begin + row)
        image = bound_unless_known(tirx.truncdiv(row, i64(self.own.tile_rows)))
        return image, bound_unless_known(row - image * i64(self.own.tile_rows))


def shuffled(vectors: Sequence[TirExpr], lanes: Sequence[int]) -> TirExpr:
    """The lanes of vectors laid one after the other."""
    return bound(tirx.Shuffle(list(vectors), [tirx.IntImm("int32", lane) for lane in lanes]))


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
