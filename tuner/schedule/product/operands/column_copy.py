"""TensorIR for a copy of the image that the columns of a product are windows of (columns.py): how it is filled, and how
vectors of columns are read in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tuner.schedule.loops.shares import Share, number_of
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run
from tuner.schedule.product.operands.gather import end_inside, lanes_inside, padded_read
from tuner.schedule.product.operands.image import behind, runs_of
from tuner.schedule.product.readers import PanelReader
from tuner.schedule.product.sources import PanelSource
from tuner.schedule.product.tile import Tile
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known, like
from tuner.schedule.vector.memory import permuted, shuffled

Source = tuple[TirExpr, TirExpr, TirExpr | None]
"""Where a vector of columns is: lanes (int32) of the elements from one place and, from the number of lanes on, of those
from another one; None: those from the first place on."""


@dataclass(frozen=True)
class CopiedPanel(PanelReader):
    """A panel in ``copy``, ``phases`` of channels ``plane`` elements apart: a source for each vector. ``at``: where the
    step is."""

    copy: TirExpr
    plane: int
    phases: int
    sources: tuple[Source, ...]
    at: TirExpr = None

    @contextmanager
    def runs(self, tile: Tile) -> Iterator[Run]:
        """The channels of one place in a window after those of another."""
        parts, chunk, columns = tile.context.parts, tile.chunk, tile.context.form.columns
        assert columns is not None
        pitches = {dim.place: i64(pitch) for dim, pitch in zip(columns.dims, (1, *columns.pitches), strict=True)}
        with runs_of(chunk, i64(columns.channels)) as (run, begin, first, length):
            elements = behind(columns.dims, parts.decomposed(parts.form.k[:-1], run))
            steps = {dim.place: i64(dim.step) for dim in columns.dims}
            lines = {place: tirx.truncdiv(element, steps[place]) for place, element in elements.items()}
            phase = {place: tirx.truncmod(element, steps[place]) for place, element in elements.items()}
            window = number_of(lines, pitches) + number_of(phase, steps) * i64(self.plane)
            # Steps count from the chunk's first one.
            channel = (chunk.first - begin) * i64(self.plane * self.phases)
            yield Run(first - chunk.first, length, bound(window + channel))

    def at_step(self, run: Run, step: TirExpr) -> CopiedPanel:
        return replace(self, at=bound(run.place + step * i64(self.plane * self.phases)))

    def vector(self, tile: Tile, step: TirExpr, v: int) -> TirExpr:
        *places, lane = self.sources[v]
        first, second = (self.copy[tile.vectors.ramp(place + self.at)] for place in places)
        return first if lane is None else permuted(bound(first), bound(second), lane)


class ColumnCopy(PanelSource):
    """A copy of an image: of each phase of each channel a ``plane``, which is lines of padded columns from line
    ``start`` on."""

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
        step, outer = columns.dims[-1].step, [range(dim.step) for dim in columns.dims[:-1]]
        with I.serial(i64(0), lines) as line, I.serial(i64(0), i64(-(-pitch // lanes))) as v:
            at = self._outer(bound_unless_known(self.start + line))
            for number, phase in enumerate(itertools.product(*outer)):
                of_phase = [bound_unless_known(index + i64(residue)) for index, residue in zip(at, phase, strict=True)]
                # What is stored past a line is overwritten by the next one, or lies in the room behind.
                to = bound_unless_known(line * i64(pitch) + v * i64(lanes) + i64(number * step * self.plane))
                self._fill_vectors(of_phase, v, to)

    def _fill_vectors(self, at: Sequence[TirExpr], v: TirExpr, to: TirExpr) -> None:
        """Vector ``v`` of the inner phases of a line of the image, whose indices but the last are ``at``."""
        context, columns, lanes, step = self.context, self.columns, self.lanes, self.columns.dims[-1].step
        sizes = [context.parts.sizes_of(columns.read.tensor)[position] for position in columns.at]
        end = end_inside(at, sizes[:-1], sizes[-1])
        first = v * i64(lanes * step) + i64(columns.dims[-1].first)
        elements = [bound_unless_known(first + i64(part * lanes)) for part in range(step)]
        masks = [bound(lanes_inside(element, end, lanes)) for element in elements]
        with I.serial(i64(0), i64(columns.channels)) as channel:
            values, parts = {**context.outer, columns.channel: channel}, list[TirExpr]()
            for element, mask in zip(elements, masks, strict=True):
                of_dims = dict(zip(columns.at, (*at, context.vectors.ramp(element)), strict=True))
                parts.append(padded_read(context, columns.read, values, of_dims, mask))
            place = channel * i64(columns.phases * self.plane) + to
            for phase, value in enumerate(_phases(parts, lanes)):
                I.buffer_store(self.packed, value, [context.vectors.ramp(place + i64(phase * self.plane))])

    def _line(self, column: TirExpr) -> TirExpr:
        (*sizes, width), pitches, inner = self.columns.sizes, self.columns.pitches[:-1], i64(self.columns.inner)
        value, rest = (bound_unless_known(part(column, inner)) for part in (tirx.truncdiv, tirx.truncmod))
        rest = bound(tirx.truncdiv(rest, i64(width))) if width > 1 else rest
        return bound_unless_known(value * i64(math.prod(pitches)) + _spread(rest, sizes, pitches))

    def _outer(self, line: TirExpr) -> list[TirExpr]:
        """The indices of the tensor's dims that lines are of, at a line of the first phase."""
        indices, outermost = [], self.columns.dims[0]
        for dim, pitch in reversed(list(zip(self.columns.dims[1:-1], self.columns.pitches[:-1], strict=True))):
            indices.append(bound_unless_known(tirx.truncmod(line, i64(pitch)) * i64(dim.step) + i64(dim.first)))
            line = bound_unless_known(tirx.truncdiv(line, i64(pitch)))
        return [bound_unless_known(line * i64(outermost.step) + i64(outermost.first)), *reversed(indices)]

    def opened(self, panel: Panel) -> Panel:
        sources = tuple(self._source(panel, v) for v in range(panel.vectors))
        return replace(panel, reader=CopiedPanel(self.packed, self.plane, self.columns.phases, sources))

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


def _phases(parts: Sequence[TirExpr], lanes: int) -> list[TirExpr]:
    """Of neighbouring vectors those of each residue of their elements."""
    if len(parts) == 1:
        return list(parts)
    parts, step = [bound(part) for part in parts], len(parts)
    return [shuffled(parts, [residue + lane * step for lane in range(lanes)]) for residue in range(step)]


def _spread(column: TirExpr, sizes: Sequence[int], pitches: Sequence[int]) -> TirExpr:
    """A flattened index whose last parts are of ``sizes``, as one whose parts have room for ``pitches``."""
    result, scale = like(0, column), 1
    for size, pitch in zip(reversed(sizes), reversed(pitches), strict=True):
        result = result + tirx.truncmod(column, like(size, column)) * like(scale, column)
        column, scale = bound(tirx.truncdiv(column, like(size, column))), scale * pitch
    return bound(result + column * like(scale, column))
