"""Right operands whose columns are pixels: with channels outside, a vector of columns at a step of k is a part of the
lines of an image, the same part for every step but for where it begins. So a copy of the image, padded, takes the place
of gathered panels. A vector is picked from two vectors of the copy: it may go over the padding between lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.expr import Axis, Expr, Read, reads
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.access import Dim, dim_of
from tuner.schedule.loops.shares import Share, number_of
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run
from tuner.schedule.product.match.factors import Part
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_read
from tuner.schedule.product.operands.image import behind, reach_of, runs_of
from tuner.schedule.product.readers import PanelReader, PanelSource
from tuner.schedule.product.tile import Tile
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known, like
from tuner.schedule.vector.memory import permuted

MAX_COLUMNS = 2**16
"""Columns of one value of the outermost axis up to which ``are_in_two`` looks."""
COPY_OF_L2 = 0.5
"""The share of L2 that a copy may take."""


@dataclass(frozen=True)
class Columns:
    """``read`` at ``dims``, the columns' axes outermost first, which are its indices ``at``; ``channel`` of
    ``channels`` and what is not in n are its other indices.

    ``sizes`` of all dims but the first, and ``pitches``: how many indices of each the copy has. Padding behind a line
    is the padding before the next one where it may be. ``reach``: of a window behind its first element, in each dim.
    """

    read: Read
    dims: tuple[Dim, ...]
    at: tuple[int, ...]
    channel: str
    channels: int
    sizes: tuple[int, ...]
    pitches: tuple[int, ...]
    reach: tuple[int, ...]

    @property
    def inner(self) -> int:
        """Columns of one value of the outermost axis."""
        return math.prod(self.sizes)

    @property
    def copied(self) -> float:
        """Elements of the copy for each column."""
        return self.channels * math.prod(self.pitches) / self.inner

    @property
    def lines_below(self) -> int:
        """Lines of the copy that windows reach behind the one that they begin in."""
        below = 0
        for reach, pitch in zip(self.reach[:-1], (1, *self.pitches[:-1]), strict=True):
            below = below * pitch + reach
        return below + 1

    def lines(self, columns: int) -> int:
        """No fewer lines of the copy than windows that begin at so many neighbouring columns touch."""
        *outer, (size, _) = zip(self.sizes, self.pitches, strict=True)
        runs = (columns + size - 2) // size + 1
        lines, between = runs, 1
        for extent, pitch in reversed(outer):
            runs = (runs + extent - 2) // extent + 1
            lines += (runs - 1) * (pitch - extent) * between
            between *= pitch
        return lines + self.lines_below

    def plane(self, columns: int, lanes: int) -> int:
        """Elements of a channel in a copy for so many columns: an odd number of vectors, so that channels do not fall
        on the same lines of a cache. Vectors are read and written past the last line."""
        elements = self.lines(columns) * self.pitches[-1] + self.reach[-1] + 2 * lanes
        return (-(-elements // lanes) | 1) * lanes

    @lru_cache(maxsize=1024)  # noqa: B019 - a few numbers, and the cache is bounded
    def most(self, width: int, hardware: Hardware) -> int:
        """Columns of a copy that takes no more than its share of L2: of one panel of ``width`` columns, or several."""
        columns, lanes, limit = width, hardware.lanes(), int(COPY_OF_L2 * hardware.l2_bytes)
        while columns < MAX_COLUMNS * width and self.channels * self.plane(2 * columns, lanes) * 4 <= limit:
            columns *= 2
        return columns

    def is_straight(self, lanes: int) -> bool:
        """Whether vectors of columns are contiguous."""
        return self.sizes[-1] % lanes == 0


def columns_of(
    workload: Workload, factors: Sequence[Expr], parts: Mapping[str, Part], n: tuple[str, ...], k: tuple[str, ...]
) -> Columns | None:  # fmt: skip
    """What the factors read, if it is one tensor whose columns are windows one element apart. All sizes but that of
    the outermost axis are known."""
    read, channel = factors[0], k[-1]
    if len(factors) > 1 or not isinstance(read, Read) or len(n) < 2 or any(reads(index) for index in read.indices):
        return None
    tensor = workload.tensors[read.tensor]
    found = [dim_of(index, n, k[:-1]) for index in read.indices]
    at = tuple(position for position, dim in enumerate(found) if dim is not None)
    dims = tuple(dim for dim in found if dim is not None)
    windows = [dim.window for dim in dims if dim.window is not None]
    if tuple(dim.place for dim in dims) != n or sorted(windows) != sorted(k[:-1]) or not windows:
        return None
    if at[-1] != len(found) - 1 or any(dim.step != 1 for dim in dims):
        return None
    others = [(index, size) for index, size, dim in zip(read.indices, tensor.dims, found, strict=True) if dim is None]
    plain = [index.name for index, size in others if isinstance(index, Axis) and workload.sizes[index.name] == size]
    if len(plain) < len(others) or channel not in plain:
        return None
    sizes = [parts[name].extent.constant or 0 for name in (channel, *n[1:])]
    extents = [tensor.dims[position].constant or 0 for position in at[1:]]
    reach = tuple(reach_of(dim, parts) for dim in dims)
    if 0 in (*sizes, *extents) or -1 in reach:
        return None
    channels, *known = sizes
    each = zip(dims[1:], known, reach[1:], extents, strict=True)
    pitches = tuple(_pitch(dim.first, size, far, extent) for dim, size, far, extent in each)
    return Columns(read, dims, at, channel, channels, tuple(known), pitches, reach)


def _pitch(first: int, size: int, reach: int, extent: int) -> int:
    """How far apart in the copy the first elements of two neighbours of the next outer dim are: what windows reach of
    the one that is not inside the tensor may be what is before the first element of the other."""
    return max(size, min(size + reach, max(extent - first, size + reach + first)))


def positions(columns: Columns, column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in a channel of the copy the windows of some columns begin."""
    result, scale = np.zeros_like(column), 1
    for size, pitch in zip(reversed(columns.sizes), reversed(columns.pitches), strict=True):
        result, column, scale = result + column % size * scale, column // size, scale * pitch
    return result + column * scale


@lru_cache(maxsize=1024)
def are_in_two(columns: Columns, lanes: int) -> bool:
    """Whether what any vector of columns has lies in two vectors of the copy, at its first and at its last lane."""
    if columns.inner > MAX_COLUMNS:
        return False
    places = positions(columns, np.arange(columns.inner * lanes).reshape(-1, lanes))
    return bool(np.all((places < places[:, :1] + lanes) | (places > places[:, -1:] - lanes)))


# -- the copy ---------------------------------------------------------------------------------------------------------
Source = tuple[TirExpr, TirExpr, TirExpr | None]
"""Where a vector of columns is: lanes (int32) of the elements from one place and, from the number of lanes on, of those
from another one; None: those from the first place on."""


@dataclass(frozen=True)
class CopiedPanel(PanelReader):
    """A panel in ``copy``, channels ``plane`` elements apart: a source for each vector. ``at``: where the step is."""

    copy: TirExpr
    plane: int
    sources: tuple[Source, ...]
    at: TirExpr = None

    @contextmanager
    def runs(self, tile: Tile) -> Iterator[Run]:
        """The channels of one place in a window after those of another."""
        parts, chunk, columns = tile.context.parts, tile.chunk, tile.context.form.columns
        assert columns is not None
        pitches = {dim.place: i64(pitch) for dim, pitch in zip(columns.dims, (1, *columns.pitches), strict=True)}
        with runs_of(chunk, i64(columns.channels)) as (run, begin, first, length):
            window = number_of(behind(columns.dims, parts.decomposed(parts.form.k[:-1], run)), pitches)
            # Steps count from the chunk's first one.
            yield Run(first - chunk.first, length, bound(window + (chunk.first - begin) * i64(self.plane)))

    def at_step(self, run: Run, step: TirExpr) -> CopiedPanel:
        return replace(self, at=bound(run.place + step * i64(self.plane)))

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        *places, lane = self.sources[v]
        first, second = (self.copy[tile.vectors.ramp(place + self.at)] for place in places)
        return first if lane is None else permuted(bound(first), bound(second), lane)


class ColumnCopy(PanelSource):
    """A copy of an image: of each channel a ``plane``, which is lines of padded columns from line ``start`` on."""

    packed: TirExpr
    start: TirExpr

    def __init__(self, context: EmitContext) -> None:
        super().__init__(context)
        assert context.form.columns is not None
        self.columns, self.lanes, n = context.form.columns, context.vectors.lanes, context.extent["n"]
        panels = self.columns.most(context.nr, context.task.known_target.hardware) // context.nr
        self.panels = min(panels, -(-int(n) // context.nr)) if isinstance(n, tirx.IntImm) else panels
        self.plane = self.columns.plane(self.panels * context.nr, self.lanes)

    def groups(self, panels: Share, use: Callable[[Share], None]) -> None:
        """As many panels at a time as the copy has room for, about as many each time; the copy is filled for them."""
        total = bound_unless_known(panels[1] - panels[0])
        count = bound_unless_known(tirx.truncdiv(total + i64(self.panels - 1), i64(self.panels)))
        most = tirx.max(count, i64(1))
        with I.serial(i64(0), count) as group:
            ends = group, group + i64(1)
            # Bindings and not stack slots: TVM may remove a slot that the address of a prefetch still reads.
            first, last = (I.Bind(panels[0] + tirx.truncdiv(total * end, most)) for end in ends)
            self._fill((first, last))
            use((first, last))

    def _fill(self, panels: Share) -> None:
        context, columns, lanes, pitch = self.context, self.columns, self.lanes, self.columns.pitches[-1]
        first, width = bound_unless_known(panels[0] * i64(context.nr)), i64(context.nr)
        last = bound_unless_known(tirx.min(panels[1] * width, context.extent["n"]) - i64(1))
        self.start = self._line(first)
        lines = bound_unless_known(self._line(last) - self.start + i64(1 + columns.lines_below))
        sizes = [context.parts.sizes_of(columns.read.tensor)[position] for position in columns.at]
        with I.serial(i64(0), lines) as line:
            at = self._outer(bound_unless_known(self.start + line))
            end = end_inside(at, sizes[:-1], sizes[-1])
            # What is stored past a line is overwritten by the next one, or lies in the room behind.
            with I.serial(i64(0), i64(-(-pitch // lanes))) as v:
                element = bound_unless_known(v * i64(lanes) + i64(columns.dims[-1].first))
                mask = lanes_inside(element, end, lanes)
                to = bound_unless_known(line * i64(pitch) + v * i64(lanes))
                of_dims = dict(zip(columns.at, (*at, context.vectors.ramp(element)), strict=True))
                with I.serial(i64(0), i64(columns.channels)) as channel:
                    values = {**context.outer, columns.channel: channel}
                    value = padded_read(context, columns.read, values, of_dims, mask)
                    I.buffer_store(self.packed, value, [context.vectors.ramp(channel * i64(self.plane) + to)])

    def _line(self, column: TirExpr) -> TirExpr:
        (*sizes, width), pitches, inner = self.columns.sizes, self.columns.pitches[:-1], i64(self.columns.inner)
        value, rest = (bound_unless_known(part(column, inner)) for part in (tirx.truncdiv, tirx.truncmod))
        rest = bound(tirx.truncdiv(rest, i64(width))) if width > 1 else rest
        return bound_unless_known(value * i64(math.prod(pitches)) + _spread(rest, sizes, pitches))

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        """The indices of the tensor's dims that lines are of, at a line."""
        indices = []
        for dim, pitch in reversed(list(zip(self.columns.dims[1:-1], self.columns.pitches[:-1], strict=True))):
            indices.append(bound_unless_known(tirx.truncmod(line, i64(pitch)) + i64(dim.first)))
            line = bound_unless_known(tirx.truncdiv(line, i64(pitch)))
        return [bound_unless_known(line + i64(self.columns.dims[0].first)), *reversed(indices)]

    def opened(self, panel: Panel) -> Panel:
        sources = tuple(self._source(panel, v) for v in range(panel.vectors))
        return replace(panel, reader=CopiedPanel(self.packed, self.plane, sources))

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        return panel

    def _source(self, panel: Panel, v: int) -> Source:
        columns, lanes = self.columns, self.lanes
        # Where in a channel windows begin, of columns (int32) from one value of the outermost axis on.
        position = partial(_spread, sizes=columns.sizes, pitches=columns.pitches)
        column = panel.column + i64(v * lanes)
        # Columns past the last one are that one again: they are computed and not stored.
        beyond = i64(lanes - 1)
        if panel.limit is not None:
            column = tirx.min(column, panel.limit - i64(1))
            beyond = tirx.min(beyond, panel.limit - i64(1) - column)
        column, beyond = bound_unless_known(column), bound_unless_known(tirx.Cast("int32", beyond))
        outer = tirx.truncdiv(column, i64(columns.inner)) * i64(math.prod(columns.pitches))
        outer = outer - self.start * i64(columns.pitches[-1])
        inner = bound_unless_known(tirx.Cast("int32", tirx.truncmod(column, i64(columns.inner))))
        zero = bound_unless_known(position(inner))
        first = bound_unless_known(outer + tirx.Cast("int64", zero))
        if columns.is_straight(lanes):
            return first, first, None
        every = tirx.min(tirx.Ramp(tirx.IntImm("int32", 0), 1, lanes), tirx.Broadcast(beyond, lanes))
        lane = bound(position(bound(tirx.Broadcast(inner, lanes) + every)) - tirx.Broadcast(zero, lanes))
        # The second vector ends at the last lane's element.
        shift = bound_unless_known(tirx.max(position(bound_unless_known(inner + beyond)) - zero - lanes + 1, 0))
        in_second = lane - tirx.Broadcast(shift - lanes, lanes)
        lane = bound(tirx.Select(lane < tirx.Broadcast(tirx.IntImm("int32", lanes), lanes), lane, in_second))
        return first, bound_unless_known(first + tirx.Cast("int64", shift)), lane


def _spread(column: TirExpr, sizes: Sequence[int], pitches: Sequence[int]) -> TirExpr:
    """A flattened index whose last parts are of ``sizes``, as one whose parts have room for ``pitches``."""
    result, scale = like(0, column), 1
    for size, pitch in zip(reversed(sizes), reversed(pitches), strict=True):
        result = result + tirx.truncmod(column, like(size, column)) * like(scale, column)
        column, scale = bound(tirx.truncdiv(column, like(size, column))), scale * pitch
    return bound(result + column * like(scale, column))
