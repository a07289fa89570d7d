"""The transforms of minimal filtering around its products: tiles are picked from lines of an image and transformed,
sums are transformed back and written.

Vectors run along tiles, over the ends of rows of tiles and of images alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_read
from tuner.schedule.product.operands.gathered import in_vectors, store_results
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.dtypes import lanes_of
from tuner.schedule.vector.memory import shuffled

if TYPE_CHECKING:
    from tuner.schedule.rules.winograd.pattern import Convolution


class Transforms:
    """The transforms of a block: rows ``begin`` to ``end`` of tiles of all images, one after the other."""

    def __init__(
        self, context: EmitContext, convolution: Convolution, panels: int, begin: TirExpr, end: TirExpr
    ) -> None:
        self.context, self.own, self.panels = context, convolution, panels
        self.filtering, self.outputs = convolution.filtering, convolution.filtering.outputs
        self.begin, self.rows = begin, bound_unless_known(end - begin)
        self.lanes, self.in_row = context.vectors.lanes, convolution.tiles_in_row
        tiles = self.rows * i64(self.in_row)
        self.vectors = bound_unless_known(tirx.truncdiv(tiles + i64(self.lanes - 1), i64(self.lanes)))

    # -- forward ------------------------------------------------------------------------------------------------------
    def forward(self, picked: TirExpr, inputs: TirExpr) -> None:
        """The tiles, transformed: ``inputs`` [points * panels, channels, columns]. ``picked`` [points, tiles] has the
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
        with I.serial(i64(0), i64(self.filtering.points)) as point:
            I.buffer_store(picked, self.context.vectors.zero(), [point, self.context.vectors.ramp(last)])

    def _pick(self, picked: TirExpr, channel: TirExpr, row: TirExpr) -> None:
        """The elements of a row of tiles. The next row overwrites what is stored past its last tile, or it is spare."""
        (image, down), columns, tile = self._of_row(row), self.own.columns, self.filtering.tile
        span = self.filtering.span
        sizes = self.context.parts.sizes_of(columns.read.tensor)
        at = [sizes[position] for position in columns.at]
        _, first_line, first_column = (dim.first for dim in columns.dims)
        for i in range(tile):
            y = bound_unless_known(down * i64(span) + i64(i + first_line))
            end = end_inside([image, y], at[:2], at[2])
            for v in _each(-(-self.in_row // self.lanes)):
                x = v * i64(span * self.lanes) + i64(first_column)
                vectors = [
                    self._line(channel, image, y, bound_unless_known(x + i64(part * self.lanes)), end)
                    for part in range(span + 1)
                ]
                to = self.context.vectors.ramp(row * i64(self.in_row) + v * i64(self.lanes))
                for j, value in enumerate(self._elements(vectors)):
                    I.buffer_store(picked, value, [i64(i * tile + j), to])

    def _line(self, channel: TirExpr, image: TirExpr, y: TirExpr, x: TirExpr, end: TirExpr) -> TirExpr:
        columns, mask = self.own.columns, lanes_inside(x, end, self.lanes)
        at = dict(zip(columns.at, (image, y, self.context.vectors.ramp(x)), strict=True))
        return bound(padded_read(self.context, columns.read, {columns.channel: channel}, at, mask))

    def _elements(self, line: Sequence[TirExpr]) -> list[TirExpr]:
        """Each element of ``lanes`` tiles of one line, of which ``line`` has one vector more than the elements from a
        tile to the next one: those behind are the first ones of the next tile."""
        *own, behind = line
        first = _strided(own)
        shifted = (
            bound(shuffled([first[j], behind], [*range(1, self.lanes), self.lanes + j]))
            for j in range(self.filtering.tile - self.filtering.span)
        )
        return [*first, *shifted]

    def _transform(self, picked: TirExpr, inputs: TirExpr, channel: TirExpr, vector: TirExpr) -> None:
        """A vector of tiles."""
        ramp, tile = self.context.vectors.ramp, self.filtering.tile
        at = vector * i64(self.lanes)
        elements = [[bound(picked[i64(i * tile + j), ramp(at)]) for j in range(tile)] for i in range(tile)]
        nv = self.context.kernel["nv"]
        panel = bound_unless_known(tirx.truncdiv(vector, i64(nv)))
        column = bound_unless_known((vector - panel * i64(nv)) * i64(self.lanes))
        for point, value in enumerate(self.filtering.forward(elements)):
            I.buffer_store(inputs, value, [i64(point * self.panels) + panel, channel, ramp(column)])

    # -- backward -----------------------------------------------------------------------------------------------------
    def backward(self, sums: TirExpr, lines: TirExpr, first: TirExpr, last: TirExpr) -> None:
        """Sums [points * kernels, tiles] of the kernels from ``first`` on and before ``last``, transformed back and
        written. ``lines``: space for the results of one kernel, of each line of tiles."""
        with I.serial(first, last) as kernel:
            with I.serial(i64(0), self.vectors) as vector:
                self._transform_back(sums, lines, kernel, vector)
            with I.serial(i64(0), self.rows) as row:
                self._write(lines, kernel, row)

    @property
    def _rows_of_line(self) -> int:
        """Rows of the buffer of elements that a line of results takes: it is as many times as long as tiles have
        outputs."""
        return self.filtering.points // self.outputs

    def _transform_back(self, sums: TirExpr, lines: TirExpr, kernel: TirExpr, vector: TirExpr) -> None:
        """A vector of tiles, whose outputs are neighbours along a line."""
        ramp, at, side = self.context.vectors.ramp, vector * i64(self.lanes), self.filtering.side
        rows = [[i64((i * side + j) * self.own.kernels_apart) + kernel for j in range(side)] for i in range(side)]
        results = self.filtering.backward([[bound(sums[row, ramp(at)]) for row in line] for line in rows])
        for i in range(self.outputs):
            along = _interleaved(results[i * self.outputs : (i + 1) * self.outputs])
            for part, value in enumerate(along):
                place = ramp((vector * i64(self.outputs) + i64(part)) * i64(self.lanes))
                I.buffer_store(lines, value, [i64(i * self._rows_of_line), place])

    def _write(self, lines: TirExpr, kernel: TirExpr, row: TirExpr) -> None:
        context, own = self.context, self.own
        (of_kernels,), (of_images, of_lines, of_columns) = own.form.m, own.form.n
        image, down = self._of_row(row)
        lanes = self.lanes if in_vectors(context) else 1
        for i in range(self.outputs):
            y = bound_unless_known(down * i64(self.outputs) + i64(i))
            with ExitStack() as guard:
                if i >= (own.height % self.outputs or self.outputs):
                    guard.enter_context(I.If(y < i64(own.height)))
                    guard.enter_context(I.Then())
                with I.serial(i64(0), i64(-(-own.width // lanes))) as v:
                    x = I.Bind(v * i64(lanes))
                    values = {of_kernels: kernel, of_images: image, of_lines: y, of_columns: x}
                    place = i64(i * self._rows_of_line), row * i64(self.outputs * self.in_row) + x
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


def _strided(vectors: Sequence[TirExpr]) -> list[TirExpr]:
    """Of m vectors laid one after the other, a power of two, every m-th element from each of the first m on."""
    if len(vectors) == 1:
        return list(vectors)
    lanes = lanes_of(vectors[0])
    halves = [
        [bound(shuffled(pair, range(odd, 2 * lanes, 2))) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
        for odd in range(2)
    ]
    return list(chain.from_iterable(zip(*map(_strided, halves), strict=True)))


def _interleaved(vectors: Sequence[TirExpr]) -> list[TirExpr]:
    """The opposite of ``_strided``."""
    if len(vectors) == 1:
        return list(vectors)
    lanes, pairs = lanes_of(vectors[0]), zip(*map(_interleaved, (vectors[::2], vectors[1::2])), strict=True)
    first = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
    return [bound(shuffled(pair, part)) for pair in pairs for part in (first[:lanes], first[lanes:])]
