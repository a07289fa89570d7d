"""TensorIR for windows: a loop over tiles, of which each thread has a contiguous share.

What a tile needs of the input is copied first, to where nothing lies outside and all loads are contiguous: a row of the
copy holds one residue modulo the stride along the vectors after the other, so that windows two elements apart read the
even elements, and the odd ones, as vectors. Then vectors of a few positions are computed in registers, tap by tap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from tuner.program.expr import Binary, Read, axes_of, reads
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, dim_expr, kernel_function
from tuner.schedule.loops.reading import Reader, write_outputs
from tuner.schedule.loops.shares import Share, in_shares, position_of, product_of
from tuner.schedule.rules.stencil.pattern import Tap, WindowProgram, lanes_of, window_program_of
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, multiply_add
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.functions import COMBINE
from tuner.schedule.vector.memory import Vectors, loaded_where, workspace

Values = Mapping[str, TirExpr]
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
        for axis in (slide.axis for slide in program.slides if slide.axis not in steps):
            # A tile spans it as a whole, and would copy a window's reach even where there is nothing of it.
            total = total * tirx.min(extents[axis], i64(1))
        shape = _copy_shape(program, kernel, extents, vectors.lanes)
        dtype = register_type(task.workload.tensors[program.read.tensor].dtype)

        def tiles(share: Share) -> None:
            with workspace(shape, dtype) as copy, I.serial(*share) as number:
                position = position_of(number, counts)
                starts = {axis: I.Bind(position[axis] * i64(step)) for axis, step in steps.items()}
                sizes = {slide.axis: extents[slide.axis] for slide in program.slides}
                cut = [axis for axis in sizes if axis in steps]
                sizes |= {axis: I.Bind(tirx.min(extents[axis] - starts[axis], i64(steps[axis]))) for axis in cut}
                starts = {**dict.fromkeys(sizes, i64(0)), **starts}
                tile = _Tile(task, kernel, function, program, vectors, copy, starts, sizes)
                _Copy(tile).fill()
                _Computation(tile).emit()

        in_shares(I.Bind(total), task.threads, tiles)
    return function.get()


def _copy_shape(program: WindowProgram, kernel: MicroKernel, extents: Values, lanes: int) -> list[TirExpr]:
    """The dims of ``program.slides`` as a whole tile needs them; the last one is residues and whole vectors of each."""
    shape = []
    for slide in program.slides[:-1]:
        block = i64(kernel["block"]) if slide is program.block else extents[slide.axis]
        shape.append(slide.span(tirx.max(block, i64(1))))
    beyond = -(-(program.vector.reach // program.vector.stride) // lanes)
    return [*shape, i64(len(program.phases)), i64((kernel["chunk"] + beyond) * lanes)]


@dataclass(frozen=True)
class _Tile:
    """One tile while it is written. ``copy``: what it reads, as ``_copy_shape`` has it. ``starts``: the index of every
    axis of the output at its first element; ``sizes``: how many values the axes take that it spans, less than a whole
    tile at the ends."""

    task: SearchTask
    kernel: MicroKernel
    function: KernelFunction
    program: WindowProgram
    vectors: Vectors
    copy: TirExpr
    starts: Values
    sizes: Values

    def reader(self, offsets: Values, tap: Tap, limit: TirExpr | None) -> Reader:
        """Of vectors of operands as they lie in memory, at offsets from the tile's first element."""
        index = {axis: start + offsets[axis] if axis in offsets else start for axis, start in self.starts.items()}
        index |= {axis: i64(value) for axis, value in tap.items()}
        buffers, along = self.function.buffers, self.program.vector.axis
        return Reader(self.task.workload, self.function, buffers, index, self.vectors.lanes, along, limit)


# -- the copy ----------------------------------------------------------------------------------------------------------
class _Copy:
    def __init__(self, tile: _Tile) -> None:
        self.tile, self.vector, self.phases = tile, tile.program.vector, tile.program.phases
        self.vectors, self.lanes = tile.vectors, tile.vectors.lanes
        tensor = tile.task.workload.tensors[tile.program.read.tensor]
        self.source, self.dtype = tile.function.buffers[tensor.name], tensor.dtype
        self.sizes = [dim_expr(dim, tile.function.symbols) for dim in tensor.dims]
        self.padding = dict(tile.task.workload.padding).get(tensor.name)
        self.outside = constant(self.padding or 0, register_type(tensor.dtype), self.lanes)

    def fill(self) -> None:
        """Row after row: what is outside the tensor is its padding."""
        tile, program, vector = self.tile, self.tile.program, self.vector
        # Reduced axes that move no window have one value.
        first_tap = dict.fromkeys(program.stage.reduce_axes, 0)
        at, to = tile.reader({}, first_tap, None).indices(program.read), list[TirExpr]()
        slid = [slide.dim for slide in program.slides]
        dims = [*(dim for dim in range(len(at)) if dim not in slid), *slid[:-1]]
        with ExitStack() as loops:
            for slide in program.slides[:-1]:
                to.append(loops.enter_context(I.serial(i64(0), slide.span(tile.sizes[slide.axis]))))
                at[slide.dim] = I.Bind(tile.starts[slide.axis] * i64(slide.stride) + i64(slide.offset) + to[-1])
            # Vectors of each residue that a row needs.
            needed = tile.sizes[vector.axis] + i64(vector.reach // vector.stride)
            count = tirx.truncdiv(needed + i64(self.lanes - 1), i64(self.lanes))
            if self.padding is None or not dims:
                self._copy_row(at, to, count)
                return
            inside = [tirx.And(at[dim] >= i64(0), at[dim] < self.sizes[dim]) for dim in dims]
            with I.If(reduce(tirx.And, inside)):
                with I.Then():
                    self._copy_row(at, to, count)
                with I.Else(), I.serial(i64(0), count) as number:
                    for place in range(len(self.phases)):
                        self._store(to, place, number, self.outside)

    def _store(self, to: list[TirExpr], place: int, number: TirExpr, value: TirExpr) -> None:
        I.buffer_store(self.tile.copy, value, [*to, i64(place), self.vectors.ramp(number * i64(self.lanes))])

    def _copy_row(self, at: list[TirExpr], to: list[TirExpr], count: TirExpr) -> None:
        """From indices ``at`` of the tensor to ``to`` of the copy. Vectors at the ends may reach past the tensor."""
        vector = self.vector
        first = self.tile.starts[vector.axis] * i64(vector.stride) + i64(vector.offset)
        step, size = i64(vector.stride * self.lanes), self.sizes[vector.dim]

        def vectors(begin: TirExpr, end: TirExpr, is_masked: bool) -> None:
            with I.serial(begin, end) as number:
                starts = [first + number * step + i64(part * self.lanes) for part in range(vector.stride)]
                parts = [self._load([*at[: vector.dim], self.vectors.ramp(start)], is_masked) for start in starts]
                for place, phase in enumerate(self.phases):
                    lanes = [tirx.IntImm("int32", phase + lane * vector.stride) for lane in range(self.lanes)]
                    value = parts[0] if vector.stride == 1 else tirx.Shuffle(parts, lanes)
                    self._store(to, place, number, value)

        begin: TirExpr = i64(0)
        if vector.offset < 0:
            begin = I.Bind(tirx.min(count, tirx.truncdiv(tirx.max(step - i64(1) - first, i64(0)), step)))
            vectors(i64(0), begin, True)
        end = I.Bind(tirx.max(begin, tirx.min(count, tirx.truncdiv(size - first, step))))
        vectors(begin, end, False)
        vectors(end, count, True)

    def _load(self, place: list[TirExpr], is_masked: bool) -> TirExpr:
        if not is_masked:
            return bound(loaded(bound(self.source[tuple(place)]), self.dtype))
        size = tirx.Broadcast(self.sizes[self.vector.dim], self.lanes)
        inside = tirx.And(place[-1] >= tirx.Broadcast(i64(0), self.lanes), place[-1] < size)
        value = bound(loaded(bound(loaded_where(inside, self.source, place)), self.dtype))
        return value if self.padding is None else bound(tirx.Select(inside, value, self.outside))


# -- the computation --------------------------------------------------------------------------------------------------
class _Computation:
    def __init__(self, tile: _Tile) -> None:
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
        """What is the same at all positions in some columns: reads ``along`` the vectors, or the others."""
        known: dict[tuple[Read, tuple[int, ...]], TirExpr] = {}
        for read in dict.fromkeys(reads(self.program.stage.body)):
            if read == self.program.read or axes_of(read) & self.tiled or (self.vector in axes_of(read)) != along:
                continue
            for tap in map(dict, self.program.taps):
                key = self.key(read, tap)
                if key not in known:
                    known[key] = self.tile.reader({self.vector: column}, tap, limit).read(read)
        return known

    def key(self, read: Read, tap: Tap) -> tuple[Read, tuple[int, ...]]:
        """What a read is known by at a position in the window."""
        return read, tuple(tap[axis] for axis in self.program.stage.reduce_axes if axis in axes_of(read))

    def _columns(self, shared: Known, column: TirExpr, vectors: int, limit: TirExpr | None) -> None:
        """All positions in the columns from ``column`` on: in groups along the innermost axis, then one by one."""
        starts = [column + i64(number * self.tile.vectors.lanes) for number in range(vectors)]
        known = [{**shared, **self._reads(start, limit, along=True)} for start in starts]
        block = partial(_Block, self, starts, limit, known)
        if self.program.inner is None:
            block(1, {}).emit()
            return
        *outer, inner = (slide.axis for slide in self.program.slides[:-1])
        rows, size = self.tile.kernel["rows"], self.tile.sizes[inner]
        with ExitStack() as loops:
            offsets = {axis: loops.enter_context(I.serial(i64(0), self.tile.sizes[axis])) for axis in outer}
            groups = I.Bind(tirx.truncdiv(size, i64(rows)))
            with I.serial(i64(0), groups) as group:
                block(rows, {**offsets, inner: group * i64(rows)}).emit()
            if rows > 1:
                with I.serial(groups * i64(rows), size) as offset:
                    block(1, {**offsets, inner: offset}).emit()


class _Block:
    """Writes a register block: ``rows`` positions along the innermost axis from ``offsets`` on, times the vectors from
    each of ``starts`` on, with what is ``known`` of it; ``limit``: where the axis ends, if within them."""

    def __init__(
        self, owner: _Computation, starts: Sequence[TirExpr], limit: TirExpr | None, known: Sequence[Known],
        rows: int, offsets: Values,
    ) -> None:  # fmt: skip
        self.owner, self.offsets, self.program, self.tile = owner, offsets, owner.program, owner.tile
        self.starts, self.limit, self.known = starts, limit, known
        self.vectors, self.types = owner.tile.vectors, owner.tile.task.workload.element_types
        self.places = [(column, row) for row in range(rows) for column in range(len(starts))]
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
        stage, body = self.program.stage, self.program.stage.body
        is_sum_of_floats = stage.reducer == "sum" and self.computed.startswith("float")

        def read(node: Read) -> TirExpr:
            if node == self.program.read:
                return self._window(place, tap)
            known, key = self.known[place[0]], self.owner.key(node, tap)
            return known[key] if key in known else self._reader(place, tap).read(node)

        axis, extent = self._reader(place, tap).axis, self.tile.function.extents.__getitem__
        evaluator = Evaluator(self.types, self.vectors.lanes, read, axis, extent)
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
        key = (place[0], *self._source(place, tap))
        if key not in self.loads:
            *steps, last = self._source(place, tap)
            slides = zip(self.program.slides[:-1], steps, strict=True)
            at = [self.offsets[slide.axis] * i64(slide.stride) + i64(step) for slide, step in slides]
            shift, phase = divmod(last, self.program.vector.stride)
            ramp = self.vectors.ramp(self.starts[place[0]] + i64(shift))
            self.loads[key] = bound(self.tile.copy[(*at, i64(self.program.phases.index(phase)), ramp)])
        return self.loads[key]

    def _reader(self, place: Place, tap: Tap) -> Reader:
        column, row = place
        offsets = {**self.offsets, self.owner.vector: self.starts[column]}
        if self.program.inner is not None:
            offsets[self.program.inner.axis] = offsets[self.program.inner.axis] + i64(row)
        return self.tile.reader(offsets, tap, self.limit)
