"""TensorIR for windows: a loop over tiles, of which each thread has a contiguous share, and a tile computed from its
copy: vectors of a few positions in registers, over every element of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tuner.program.expr import Binary, Read, axes_of, reads
from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.loops.outputs import write_outputs
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share, in_shares, position_of, product_of
from tuner.schedule.rules.stencil.pattern import Tap, lanes_of, window_program_of
from tuner.schedule.rules.stencil.scratch import Scratch, Tile, copy_shape
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, multiply_add
from tuner.schedule.vector.dtypes import register_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors, workspace
from tuner.schedule.vector.reducers import COMBINE

Known = Mapping[tuple[Read, tuple[int, ...]], TirExpr]
"""Values of reads by the position in the window, as far as they depend on it."""
Place = tuple[int, int]
"""A vector of a register block: its column, counted in vectors, and its row."""


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    program, vectors = window_program_of(task.workload), Vectors(lanes_of(task))
    steps = dict.fromkeys(program.outer, 1)
    if program.block is not None:
        steps[program.block.axis] = kernel["block"]
    steps[program.vector.axis] = kernel["chunk"] * vectors.lanes
    with kernel_function(task.workload, {}, name) as function:
        extents = function.extents
        counts = {axis: tirx.truncdiv(extents[axis] + i64(step - 1), i64(step)) for axis, step in steps.items()}
        total = product_of(counts)
        for slide in program.slides:
            if slide.axis not in steps:
                # A tile spans it as a whole, and would copy a window's reach even where there is nothing of it.
                total = total * tirx.min(extents[slide.axis], i64(1))
        shape = copy_shape(program, kernel, extents, vectors.lanes)
        dtype = register_type(task.workload.tensors[program.read.tensor].dtype)

        def tiles(share: Share) -> None:
            with workspace(shape, dtype) as copy, I.serial(*share) as number:
                position = position_of(number, counts)
                starts = {axis: I.Bind(position[axis] * i64(step)) for axis, step in steps.items()}
                sizes = {slide.axis: extents[slide.axis] for slide in program.slides}
                cut = [axis for axis in sizes if axis in steps]
                sizes |= {axis: I.Bind(tirx.min(extents[axis] - starts[axis], i64(steps[axis]))) for axis in cut}
                starts = {**dict.fromkeys(sizes, i64(0)), **starts}
                tile = Tile(task, kernel, function, program, vectors, copy, starts, sizes)
                Scratch(tile).fill()
                _Computation(tile).emit()

        in_shares(I.Bind(total), task.threads, tiles)
    return function.get()


class _Computation:
    """Writes the loops within a tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.program, self.vector = tile, tile.program, tile.program.vector.axis
        self.tiled = {slide.axis for slide in tile.program.slides[:-1]}

    def emit(self) -> None:
        """Groups of vectors, then single ones of which the last may be ragged."""
        lanes, vectors, size = self.tile.vectors.lanes, self.tile.kernel["vectors"], self.tile.sizes[self.vector]
        known = self._reads(i64(0), None, along=False)
        groups = I.Bind(tirx.truncdiv(size, i64(lanes * vectors)))
        with I.serial(i64(0), groups) as group:
            self._columns(known, group * i64(lanes * vectors), vectors, None)
        end = tirx.truncdiv(size + i64(lanes - 1), i64(lanes))
        with I.serial(groups * i64(vectors), end) as number:
            self._columns(known, number * i64(lanes), 1, self.tile.function.extents[self.vector])

    def _reads(self, column: TirExpr, limit: TirExpr | None, along: bool) -> Known:
        """The reads, beside that of the windows, that are the same at all positions of the tile in some columns: those
        ``along`` the vectors, or the others."""
        known: dict[tuple[Read, tuple[int, ...]], TirExpr] = {}
        for read in dict.fromkeys(reads(self.program.stage.body)):
            if read == self.program.read or axes_of(read) & self.tiled or (self.vector in axes_of(read)) != along:
                continue
            for tap in map(dict, self.program.taps):
                key = self.key(read, tap)
                if key not in known:
                    known[key] = self.reader({self.vector: column}, tap, limit).read(read)
        return known

    def key(self, read: Read, tap: Tap) -> tuple[Read, tuple[int, ...]]:
        """What a read is known by at a position in the window."""
        return read, tuple(tap[axis] for axis in self.program.stage.reduce_axes if axis in axes_of(read))

    def reader(self, offsets: Mapping[str, TirExpr], tap: Tap, limit: TirExpr | None) -> Reader:
        """Of operands as they lie in memory, at offsets from the tile's first element."""
        index = {axis: start + offsets[axis] if axis in offsets else start for axis, start in self.tile.starts.items()}
        return self.tile.reader({**index, **{axis: i64(value) for axis, value in tap.items()}}, limit)

    def _columns(self, shared: Known, column: TirExpr, vectors: int, limit: TirExpr | None) -> None:
        """All positions of the tile in the columns from ``column`` on; of the innermost axis in groups, then one by
        one."""
        starts = [column + i64(number * self.tile.vectors.lanes) for number in range(vectors)]
        known = [{**shared, **self._reads(start, limit, along=True)} for start in starts]
        columns = _Columns(starts, limit, known)
        if self.program.inner is None:
            _Block(self, {}, 1, columns).emit()
            return
        *outer, inner = (slide.axis for slide in self.program.slides[:-1])
        rows, size = self.tile.kernel["rows"], self.tile.sizes[inner]
        with ExitStack() as loops:
            offsets = {axis: loops.enter_context(I.serial(i64(0), self.tile.sizes[axis])) for axis in outer}
            groups = I.Bind(tirx.truncdiv(size, i64(rows)))
            with I.serial(i64(0), groups) as group:
                _Block(self, {**offsets, inner: group * i64(rows)}, rows, columns).emit()
            if rows > 1:
                with I.serial(groups * i64(rows), size) as offset:
                    _Block(self, {**offsets, inner: offset}, 1, columns).emit()


@dataclass(frozen=True)
class _Columns:
    """Neighbouring vectors: where in the tile each starts, and what is ``known`` of it; ``limit``: where the axis ends,
    if within them."""

    starts: Sequence[TirExpr]
    limit: TirExpr | None
    known: Sequence[Known]


class _Block:
    """Writes a register block: ``rows`` positions along the innermost axis, times the vectors of some columns."""

    def __init__(self, owner: _Computation, offsets: Mapping[str, TirExpr], rows: int, columns: _Columns) -> None:
        self.owner, self.offsets, self.columns, self.program = owner, offsets, columns, owner.program
        self.tile, self.vectors, self.types = owner.tile, owner.tile.vectors, owner.tile.task.workload.element_types
        self.places = [(column, row) for row in range(rows) for column in range(len(columns.starts))]
        self.computed = self.types.reduced_type(self.program.stage)
        self.loads: dict[tuple[int, ...], TirExpr] = {}
        self.totals: dict[Place, TirExpr] = {}

    def emit(self) -> None:
        """Every place with every element of its window, those that read the same vector one after the other."""
        turns = [(place, dict(tap)) for tap in self.program.taps for place in self.places]
        for place, tap in sorted(turns, key=lambda turn: (self._source(*turn), turn[0])):
            self._add(place, tap)
        for place in self.places:
            write_outputs((self.program.stage, *self.program.after), self._total(place), self._reader(place, {}))

    def _source(self, place: Place, tap: Tap) -> tuple[int, ...]:
        """From the first element of the block to the one that is read, by dim of the copy."""
        inner, row = self.program.inner, place[1]
        return tuple(slide.step(tap) + (row * slide.stride if slide is inner else 0) for slide in self.program.slides)

    def _add(self, place: Place, tap: Tap) -> None:
        stage, body, types = self.program.stage, self.program.stage.body, self.types
        is_sum_of_floats = stage.reducer == "sum" and self.computed.startswith("float")

        def read(node: Read) -> TirExpr:
            if node == self.program.read:
                return self._window(place, tap)
            known, key = self.columns.known[place[0]], self.owner.key(node, tap)
            return known[key] if key in known else self._reader(place, tap).read(node)

        axis, extent = self._reader(place, tap).axis, self.tile.function.extents.__getitem__
        evaluator = Evaluator(types, self.vectors.lanes, read, axis, extent)
        if place not in self.totals:
            self.totals[place] = I.alloc_buffer((self.vectors.lanes,), self.computed)
            value = bound(evaluator.value(body, self.computed))
        elif is_sum_of_floats and isinstance(body, Binary) and body.operator == "*":
            left, right = (bound(evaluator.value(side, self.computed)) for side in (body.left, body.right))
            value = multiply_add(left, right, self._total(place))
        else:
            value = COMBINE[str(stage.reducer)](bound(evaluator.value(body, self.computed)), self._total(place))
        I.buffer_store(self.totals[place], value, [self.vectors.ramp(0)])

    def _total(self, place: Place) -> TirExpr:
        return bound(self.totals[place][self.vectors.ramp(0)])

    def _window(self, place: Place, tap: Tap) -> TirExpr:
        """A vector of the copy."""
        key = (place[0], *self._source(place, tap))
        if key not in self.loads:
            *steps, last = self._source(place, tap)
            slides = zip(self.program.slides[:-1], steps, strict=True)
            at = [self.offsets[slide.axis] * i64(slide.stride) + i64(step) for slide, step in slides]
            shift, phase = divmod(last, self.program.vector.stride)
            ramp = self.vectors.ramp(self.columns.starts[place[0]] + i64(shift))
            self.loads[key] = bound(self.tile.copy[(*at, i64(self.program.phases.index(phase)), ramp)])
        return self.loads[key]

    def _reader(self, place: Place, tap: Tap) -> Reader:
        column, row = place
        offsets = {**self.offsets, self.owner.vector: self.columns.starts[column]}
        if self.program.inner is not None:
            offsets[self.program.inner.axis] = offsets[self.program.inner.axis] + i64(row)
        return self.owner.reader(offsets, tap, self.columns.limit)
