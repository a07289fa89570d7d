"""Panels of the right operand that are read in a padded copy of an image with channels outside.

The copy has each element of the lines that some panels need once, where gathered panels hold it once for each window
that it is in. A vector of columns is picked from two vectors of the copy: it may go over the padding between lines.
Which lanes it takes is the same for every step of k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run, Values
from tuner.schedule.product.operands.columns import Columns, copy_bytes
from tuner.schedule.product.operands.padded import end_inside, lanes_inside, padded_vector, runs_of_chunk
from tuner.schedule.product.readers import PanelReader, PanelSource
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.memory import workspace
from tuner.schedule.vector.permutation import permuted

if TYPE_CHECKING:
    from tuner.schedule.product.tile import Tile


@dataclass(frozen=True)
class Source:
    """Where a vector of columns is: ``lane`` (int32) of the elements from ``first`` and, from the number of lanes on,
    of those from ``second`` on; None: those from ``first`` on."""

    first: TirExpr
    second: TirExpr
    lane: TirExpr | None


@dataclass(frozen=True)
class CopiedPanel(PanelReader):
    """A panel in ``copy``, whose channels are ``plane`` elements apart: a source for each of its vectors. ``place``:
    where the step 0 of a chunk is in a run; ``at``: where the step at hand is."""

    copy: TirExpr
    plane: int
    sources: tuple[Source, ...]
    place: TirExpr = None
    at: TirExpr = None

    @contextmanager
    def runs(self, tile: Tile) -> Iterator[Run]:
        """The channels of one place in a window after those of another."""
        parts, chunk = tile.context.parts, tile.chunk
        columns, windows = parts.form.columns, parts.form.k[:-1]
        assert columns is not None
        with runs_of_chunk(chunk, i64(columns.channels)) as (run, begin, first, length):
            # Steps count from the chunk's first one.
            place = bound(_window(columns, parts.decomposed(windows, run)) + (chunk.first - begin) * i64(self.plane))
            yield Run(first - chunk.first, length, place)

    def in_run(self, run: Run) -> CopiedPanel:
        return replace(self, place=run.place)

    def begin_step(self, step: TirExpr) -> CopiedPanel:
        return replace(self, at=bound(self.place + step * i64(self.plane)))

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        source = self.sources[v]
        first = self.copy[tile.vectors.ramp(source.first + self.at)]
        if source.lane is None:
            return first
        second = self.copy[tile.vectors.ramp(source.second + self.at)]
        return permuted(bound(first), bound(second), source.lane)


def _window(columns: Columns, values: Values) -> TirExpr:
    """How far behind a window's first element one of its places lies."""
    place: TirExpr = i64(0)
    for dim, pitch in zip(columns.dims, (1, *columns.pitches), strict=True):
        own = i64(0) if dim.window is None else values[dim.window] * i64(dim.dilation)
        place = place * i64(pitch) + own
    return place


@contextmanager
def column_copy(context: EmitContext) -> Iterator[ColumnCopy]:
    """Room for a copy of what some panels need of the image."""
    columns = context.form.columns
    assert columns is not None
    lanes, n = context.vectors.lanes, context.extent["n"]
    panels = columns.panels(context.nr, lanes, copy_bytes(context.task.known_target.hardware))
    if isinstance(n, tirx.IntImm):
        panels = min(panels, -(-int(n) // context.nr))
    plane = columns.plane(panels * context.nr, lanes)
    with workspace((i64(columns.channels * plane),)) as packed:
        yield ColumnCopy(context, packed, panels, plane)


class ColumnCopy(PanelSource):
    """A copy of an image: channels of lines of padded columns, from line ``start`` on."""

    def __init__(self, context: EmitContext, packed: TirExpr, panels: int, plane: int) -> None:
        assert context.form.columns is not None
        super().__init__(context)
        self.columns, self.packed = context.form.columns, packed
        self.panels, self.plane, self.lanes = panels, plane, context.vectors.lanes
        self.start: TirExpr = i64(0)

    def groups(self, panels: Share, use: Callable[[Share], None]) -> None:
        """As many panels at a time as the copy has room for, about as many each time; the copy is filled for them."""
        total = bound_unless_known(panels[1] - panels[0])
        count = bound_unless_known(tirx.truncdiv(total + i64(self.panels - 1), i64(self.panels)))
        with I.serial(i64(0), count) as group:
            first, last = (
                bound_unless_known(panels[0] + tirx.truncdiv(total * end, tirx.max(count, i64(1))))
                for end in (group, group + i64(1))
            )
            self._fill((first, last))
            use((first, last))

    # -- filling --------------------------------------------------------------------------------------------------
    def _fill(self, panels: Share) -> None:
        first, width = bound_unless_known(panels[0] * i64(self.context.nr)), i64(self.context.nr)
        last = bound_unless_known(tirx.min(panels[1] * width, self.context.extent["n"]) - i64(1))
        self.start = self._line(first)
        lines = bound_unless_known(self._line(last) - self.start + i64(1 + self.columns.lines_below))
        of_tensor = self.context.parts.sizes_of(self.columns.read.tensor)
        sizes = [of_tensor[position] for position in self.columns.at]
        with I.serial(i64(0), lines) as line:
            at = self._outer(bound_unless_known(self.start + line))
            end = end_inside(at, sizes[:-1], sizes[-1])
            vectors = -(-self.columns.pitches[-1] // self.lanes)
            # What is stored past a line is overwritten by the next one, or lies in the room behind.
            with I.serial(i64(0), i64(vectors)) as v:
                self._fill_vector(at, end, line, v)

    def _fill_vector(self, at: Sequence[TirExpr], end: TirExpr, line: TirExpr, v: TirExpr) -> None:
        """One vector of a line in every channel: ``at`` are the indices of the outer dims, ``end`` is where the line
        ends in the tensor."""
        context, columns, lanes, read = self.context, self.columns, self.lanes, self.columns.read
        element = bound_unless_known(v * i64(lanes) + i64(columns.dims[-1].first))
        mask = lanes_inside(element, end, lanes)
        to = bound_unless_known(line * i64(columns.pitches[-1]) + v * i64(lanes))
        of_dims = dict(zip(columns.at, (*at, context.vectors.ramp(element)), strict=True))
        with I.serial(i64(0), i64(columns.channels)) as channel:
            index = context.parts.index({**context.outer, columns.channel: channel})
            found = Reader(context.task.workload, context.function, context.buffers, index, 1, None).indices(read)
            place = [of_dims.get(position, value) for position, value in enumerate(found)]
            value = padded_vector(context, read.tensor, context.buffers[read.tensor], place, mask)
            I.buffer_store(self.packed, value, [context.vectors.ramp(channel * i64(self.plane) + to)])

    def _line(self, column: TirExpr) -> TirExpr:
        """The line that a column's window begins in."""
        value = bound_unless_known(tirx.truncdiv(column, i64(self.columns.inner)))
        rest = bound_unless_known(tirx.truncmod(column, i64(self.columns.inner)))
        of_rest = _flattened(rest, self.columns.sizes[:-1], self.columns.pitches[:-1], self.columns.sizes[-1])
        lines = 1
        for pitch in self.columns.pitches[:-1]:
            lines *= pitch
        return bound_unless_known(value * i64(lines) + of_rest)

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        """The indices of the tensor's dims that lines are of, at a line."""
        indices = []
        for dim, pitch in reversed(list(zip(self.columns.dims[1:-1], self.columns.pitches[:-1], strict=True))):
            indices.append(bound_unless_known(tirx.truncmod(line, i64(pitch)) + i64(dim.first)))
            line = bound_unless_known(tirx.truncdiv(line, i64(pitch)))
        return [bound_unless_known(line + i64(self.columns.dims[0].first)), *reversed(indices)]

    # -- reading --------------------------------------------------------------------------------------------------
    def opened(self, panel: Panel) -> Panel:
        sources = tuple(self._source(panel, v) for v in range(panel.vectors))
        return replace(panel, reader=CopiedPanel(self.packed, self.plane, sources))

    def placed(self, panel: Panel, chunk: Chunk) -> Panel:
        return panel

    def _source(self, panel: Panel, v: int) -> Source:
        columns, lanes = self.columns, self.lanes
        column = panel.column + i64(v * lanes)
        # Columns past the last one are that one again: they are computed and not stored.
        beyond = i64(lanes - 1)
        if panel.limit is not None:
            column = tirx.min(column, panel.limit - i64(1))
            beyond = tirx.min(beyond, panel.limit - i64(1) - column)
        column, beyond = bound_unless_known(column), bound_unless_known(tirx.Cast("int32", beyond))
        plane = columns.pitches[-1]
        for pitch in columns.pitches[:-1]:
            plane *= pitch
        outer = tirx.truncdiv(column, i64(columns.inner)) * i64(plane) - self.start * i64(columns.pitches[-1])
        inner = bound_unless_known(tirx.Cast("int32", tirx.truncmod(column, i64(columns.inner))))
        zero = bound_unless_known(self._position(inner))
        first = bound_unless_known(outer + tirx.Cast("int64", zero))
        if columns.is_straight(lanes):
            return Source(first, first, None)
        every = tirx.min(tirx.Ramp(tirx.IntImm("int32", 0), 1, lanes), tirx.Broadcast(beyond, lanes))
        lane = bound(self._position(bound(tirx.Broadcast(inner, lanes) + every)) - tirx.Broadcast(zero, lanes))
        # The second vector ends at the last lane's element.
        shift = bound_unless_known(tirx.max(self._position(bound_unless_known(inner + beyond)) - zero - lanes + 1, 0))
        in_second = lane - tirx.Broadcast(shift - lanes, lanes)
        lane = bound(tirx.Select(lane < tirx.Broadcast(tirx.IntImm("int32", lanes), lanes), lane, in_second))
        return Source(first, bound_unless_known(first + tirx.Cast("int64", shift)), lane)

    def _position(self, column: TirExpr) -> TirExpr:
        """Where in a channel a column's window begins, of columns (int32) from one value of the outermost axis on."""
        return _flattened(column, self.columns.sizes, self.columns.pitches, 1)


def _flattened(column: TirExpr, sizes: Sequence[int], pitches: Sequence[int], divisor: int) -> TirExpr:
    """What ``column // divisor`` is when the last parts of it, which are of ``sizes``, have room for ``pitches``."""

    def number(value: int) -> TirExpr:
        dtype, _, lanes = str(column.ty.dtype).partition("x")
        scalar = tirx.IntImm(dtype, value)
        return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar

    column = bound(tirx.truncdiv(column, number(divisor))) if divisor > 1 else column
    result, scale = number(0), 1
    for size, pitch in zip(reversed(sizes), reversed(pitches), strict=True):
        result = result + tirx.truncmod(column, number(size)) * number(scale)
        column, scale = bound(tirx.truncdiv(column, number(size))), scale * pitch
    return bound(result + column * number(scale))
