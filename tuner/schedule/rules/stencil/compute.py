"""A tile computed from its copy: vectors of a few positions in registers, over every element of the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.program.expr import Binary, Read, axes_of, reads
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.reading import Reader, write_outputs
from tuner.schedule.loops.shares import Share, in_shares, position_of, product_of
from tuner.schedule.rules.stencil.pattern import Slide, Tap, Tile, WindowProgram, lanes_of, window_program_of
from tuner.schedule.rules.stencil.scratch import Scratch
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, multiply_add
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors, workspace
from tuner.schedule.vector.reducers import COMBINE

Known = Mapping[tuple[Read, tuple[int, ...]], TirExpr]
"""Values of reads by the position in the window, as far as they depend on it."""


@dataclass(frozen=True)
class Place:
    """A vector of the output: ``row`` of the register block, ``column`` in vectors."""

    row: int
    column: int


class Computation:
    """Writes the loops within a tile. ``copy``: what scratch.py laid out."""

    def __init__(
        self, task: SearchTask, program: WindowProgram, function: KernelFunction, kernel: MicroKernel, copy: TirExpr,
        tile: Tile,
    ) -> None:  # fmt: skip
        self.task, self.workload, self.program, self.function = task, task.workload, program, function
        self.kernel, self.copy, self.tile = kernel, copy, tile
        self.lanes = lanes_of(task)
        self.tiled = {slide.axis for slide in program.slides[:-1]}

    def emit(self) -> None:
        """Groups of vectors, then single ones of which the last may be ragged."""
        lanes, vectors, vector = self.lanes, self.kernel["vectors"], self.program.vector.axis
        size = self.tile.sizes[vector]
        known = self._reads(i64(0), None, lambda read: vector not in axes_of(read))
        groups = I.Bind(tirx.truncdiv(size, i64(lanes * vectors)))
        with I.serial(i64(0), groups) as group:
            self._columns(known, group * i64(lanes * vectors), vectors, None)
        end = tirx.truncdiv(size + i64(lanes - 1), i64(lanes))
        with I.serial(groups * i64(vectors), end) as number:
            self._columns(known, number * i64(lanes), 1, self.function.extents[vector])

    # -- reads that do not depend on the position ------------------------------------------------------------------
    def _reads(self, column: TirExpr, limit: TirExpr | None, is_chosen: Callable[[Read], bool]) -> Known:
        """The reads, beside that of the windows, that are the same at all positions of the tile in some columns."""
        stage, known = self.program.stage, {}
        for read in dict.fromkeys(reads(stage.body)):
            if read == self.program.read or axes_of(read) & self.tiled or not is_chosen(read):
                continue
            for tap in map(dict, self.program.taps):
                key = self._key(read, tap)
                if key not in known:
                    known[key] = self._reader({}, tap, column, limit).read(read)
        return known

    def _key(self, read: Read, tap: Tap) -> tuple[Read, tuple[int, ...]]:
        return read, tuple(tap[axis] for axis in self.program.stage.reduce_axes if axis in axes_of(read))

    def _reader(self, offsets: Mapping[str, TirExpr], tap: Tap, column: TirExpr, limit: TirExpr | None) -> Reader:
        """Of operands as they lie in memory, at an offset from the tile's first element."""
        vector, index = self.program.vector.axis, dict(self.tile.starts)
        for axis, offset in {**offsets, vector: column}.items():
            index[axis] = index[axis] + offset
        index.update({axis: i64(value) for axis, value in tap.items()})
        buffers = self.function.buffers
        return Reader(self.workload, self.function, buffers, index, self.lanes, vector, limit)

    # -- positions --------------------------------------------------------------------------------------------------
    def _columns(self, known: Known, column: TirExpr, vectors: int, limit: TirExpr | None) -> None:
        """All positions of the tile in the columns from ``column`` on."""
        vector = self.program.vector.axis
        own: dict[int, Known] = {}
        for number in range(vectors):
            start = column + i64(number * self.lanes)
            own[number] = {**known, **self._reads(start, limit, lambda read: vector in axes_of(read))}
        self._positions(self.program.slides[:-1], {}, _Columns(column, vectors, limit, own))

    def _positions(self, slides: Sequence[Slide], offsets: Mapping[str, TirExpr], columns: _Columns) -> None:
        """Loops over the axes beside that of the vectors; the innermost in groups, then one by one."""
        if not slides:
            _Block(self, offsets, None, 1, columns).emit()
            return
        slide, *rest = slides
        size, rows = self.tile.sizes[slide.axis], self.kernel["rows"]
        if rest:
            with I.serial(i64(0), size) as offset:
                self._positions(rest, {**offsets, slide.axis: offset}, columns)
            return
        groups = I.Bind(tirx.truncdiv(size, i64(rows)))
        with I.serial(i64(0), groups) as group:
            _Block(self, {**offsets, slide.axis: group * i64(rows)}, slide, rows, columns).emit()
        if rows > 1:
            with I.serial(groups * i64(rows), size) as offset:
                _Block(self, {**offsets, slide.axis: offset}, slide, 1, columns).emit()


@dataclass(frozen=True)
class _Columns:
    """Neighbouring vectors from offset ``start`` of the tile on; ``limit``: where the axis ends, if within them."""

    start: TirExpr
    vectors: int
    limit: TirExpr | None
    known: Mapping[int, Known]


class _Block:
    """Writes a register block: ``rows`` positions along ``inner``, times the vectors of some columns."""

    def __init__(
        self, owner: Computation, offsets: Mapping[str, TirExpr], inner: Slide | None, rows: int, columns: _Columns
    ) -> None:
        self.owner, self.offsets, self.inner, self.columns = owner, offsets, inner, columns
        self.program, self.types = owner.program, owner.workload.element_types
        self.places = [Place(row, column) for row in range(rows) for column in range(columns.vectors)]
        self.computed = self.types.reduced_type(self.program.stage)
        self.vectors = Vectors(owner.lanes)
        self.loads: dict[tuple[object, ...], TirExpr] = {}
        self.totals: dict[Place, TirExpr] = {}

    def emit(self) -> None:
        for place, tap in self._turns():
            self._add(place, tap)
        for place in self.places:
            write_outputs((self.program.stage, *self.program.after), self._total(place), self._reader(place, {}))

    def _turns(self) -> Iterator[tuple[Place, Tap]]:
        """Every place with every element of its window, those that read the same vector one after the other."""
        turns = [(place, dict(tap)) for tap in self.program.taps for place in self.places]
        yield from sorted(turns, key=lambda turn: (self._source(*turn), turn[0].column, turn[0].row))

    def _source(self, place: Place, tap: Tap) -> tuple[int, ...]:
        """From the first element of the block to the one that is read, by dim of the copy."""
        result = []
        for slide in self.program.slides:
            rows = place.row * slide.stride if slide is self.inner else 0
            result.append(rows + slide.step(tap))
        return tuple(result)

    # -- the reduction ----------------------------------------------------------------------------------------------
    def _add(self, place: Place, tap: Tap) -> None:
        stage, body = self.program.stage, self.program.stage.body
        evaluator = self._evaluator(place, tap, lambda read: self._operand(place, tap, read))
        if place not in self.totals:
            self.totals[place] = I.alloc_buffer((self.vectors.lanes,), self.computed)
            value = bound(evaluator.value(body, self.computed))
        elif self._is_float_sum and isinstance(body, Binary) and body.operator == "*":
            left, right = (bound(evaluator.value(side, self.computed)) for side in (body.left, body.right))
            value = multiply_add(left, right, self._total(place))
        else:
            value = COMBINE[str(stage.reducer)](bound(evaluator.value(body, self.computed)), self._total(place))
        I.buffer_store(self.totals[place], value, [self.vectors.ramp(0)])

    def _total(self, place: Place) -> TirExpr:
        return bound(self.totals[place][self.vectors.ramp(0)])

    @property
    def _is_float_sum(self) -> bool:
        return self.program.stage.reducer == "sum" and self.computed.startswith("float")

    def _operand(self, place: Place, tap: Tap, read: Read) -> TirExpr:
        if read == self.program.read:
            return self._window(place, tap)
        known, key = self.columns.known[place.column], self.owner._key(read, tap)
        return known[key] if key in known else self._reader(place, tap).read(read)

    def _window(self, place: Place, tap: Tap) -> TirExpr:
        """A vector of the copy."""
        key = (place.column, self._source(place, tap))
        if key not in self.loads:
            vector, source = self.program.vector, self._source(place, tap)
            at = [
                self.offsets[slide.axis] * i64(slide.stride) + i64(step)
                for slide, step in zip(self.program.slides[:-1], source[:-1], strict=True)
            ]
            shift, phase = divmod(source[-1], vector.stride)
            column = self._column(place) + i64(shift)
            ramp = tirx.Ramp(column, i64(1), self.vectors.lanes)
            self.loads[key] = bound(self.owner.copy[(*at, i64(self.program.phases.index(phase)), ramp)])
        return self.loads[key]

    def _column(self, place: Place) -> TirExpr:
        return self.columns.start + i64(place.column * self.vectors.lanes)

    def _reader(self, place: Place, tap: Tap) -> Reader:
        offsets = dict(self.offsets)
        if self.inner is not None:
            offsets[self.inner.axis] = offsets[self.inner.axis] + i64(place.row)
        return self.owner._reader(offsets, tap, self._column(place), self.columns.limit)

    def _evaluator(self, place: Place, tap: Tap, read: Callable[[Read], TirExpr]) -> Evaluator:
        axis = self._reader(place, tap).axis
        return Evaluator(self.types, self.vectors.lanes, read, axis, self.owner.function.extents.__getitem__)


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    program = window_program_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        _Loops(task, kernel, function, program).emit()
    return function.get()


class _Loops:
    """Writes the loop over tiles; each thread has a contiguous share of them."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, program: WindowProgram) -> None:
        self.task, self.kernel, self.function, self.program = task, kernel, function, program
        self.lanes = lanes_of(task)
        self.steps = dict.fromkeys(program.outer, 1)
        if program.block is not None:
            self.steps[program.block.axis] = kernel["block"]
        self.steps[program.vector.axis] = kernel["chunk"] * self.lanes

    def emit(self) -> None:
        extents = self.function.extents
        counts = {axis: tirx.truncdiv(extents[axis] + i64(step - 1), i64(step)) for axis, step in self.steps.items()}
        total = product_of(counts)
        for slide in self.program.slides:
            if slide.axis not in self.steps:
                # A tile spans it as a whole, and would copy a window's reach even where there is nothing of it.
                total = total * tirx.min(extents[slide.axis], i64(1))
        scratch = Scratch(self.task.workload, self.program, self.function, self.kernel, self.lanes)

        def tiles(share: Share) -> None:
            with workspace(scratch.shape, scratch.dtype) as buffer, I.serial(*share) as number:
                tile = self._tile(position_of(number, counts))
                scratch.fill(buffer, tile)
                Computation(self.task, self.program, self.function, self.kernel, buffer, tile).emit()

        in_shares(I.Bind(total), self.task.threads, tiles)

    def _tile(self, position: Mapping[str, TirExpr]) -> Tile:
        starts = {axis: I.Bind(position[axis] * i64(step)) for axis, step in self.steps.items()}
        starts = {slide.axis: i64(0) for slide in self.program.slides} | starts
        sizes = {}
        for slide in self.program.slides:
            extent = self.function.extents[slide.axis]
            step = self.steps.get(slide.axis)
            sizes[slide.axis] = extent if step is None else I.Bind(tirx.min(extent - starts[slide.axis], i64(step)))
        return Tile(starts, sizes)
