"""TensorIR for windows: a loop over tiles, of which each thread has a contiguous share.

What a tile needs of the input is copied first, to where nothing lies outside and all loads are contiguous: a row of the
copy holds one residue modulo the stride along the vectors after the other, so that windows two elements apart read the
even elements, and the odd ones, as vectors. Then vectors of a few positions are computed in registers, tap by tap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Read, axes_of, reads
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.loops.reading import NOTHING, Index, Nest, Reader, addition, write_outputs
from tuner.schedule.loops.shares import Share, in_groups_to, in_shares, number_of, position_of, product_of
from tuner.schedule.rules.stencil.pattern import Tap, WindowProgram, others
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.memory import loaded_where, workspace

Known = Mapping[tuple[Read, tuple[int, ...]], TirExpr]
"""Values of reads by the position in the window, as far as they depend on it."""
Place = tuple[int, int]
"""A vector of a register block: its column, counted in vectors, and its row."""


class TileNest(Nest):
    """Writes the loop over tiles. ``steps``: how many values of an axis a tile spans, of axes that are cut."""

    def __init__(self, task: SearchTask, program: WindowProgram, kernel: MicroKernel, function: KernelFunction) -> None:
        super().__init__(task, kernel, function, program.lanes(task))
        self.program, self.vector = program, program.vector
        self.steps = dict.fromkeys(program.outer, 1)
        if program.block is not None:
            self.steps[program.block.axis] = kernel["block"]
        self.steps[self.vector.axis] = kernel["chunk"] * self.lanes
        steps = self.steps.items()
        self.counts = {axis: tirx.truncdiv(self.extents[axis] + i64(step - 1), i64(step)) for axis, step in steps}
        self.source = task.workload.tensors[program.read.tensor]
        self.dims = [dim_expr(dim, function.symbols) for dim in self.source.dims]
        self.padding = dict(task.workload.padding).get(self.source.name)

    def emit(self) -> None:
        total = product_of(self.counts)
        for axis in (slide.axis for slide in self.program.slides if slide.axis not in self.steps):
            # A tile spans it as a whole, and would copy a window's reach even where there is nothing of it.
            total = total * tirx.min(self.extents[axis], i64(1))
        in_shares(I.Bind(total), self.threads, self.tiles)

    def tiles(self, share: Share) -> None:
        """The loop over the tiles of one thread."""
        shape, dtype = self._copy_shape(), register_type(self.source.dtype)
        with workspace(shape, dtype) as copy:
            self._clear(copy, shape)
            with I.serial(*share) as number:
                tile = Tile(self, copy, *self.bounds(number))
                tile.fill()
                tile.compute()

    def operand(self, reader: Reader, read: Read) -> TirExpr:
        """A vector of an operand at the index of ``reader``: as it lies or, at a whole number of vectors, packed."""
        if read not in self.program.packed:
            return reader.read(read)
        at, tensor = reader.indices(read), self.workload.tensors[read.tensor]
        along, sizes = self.program.along(read), [dim_expr(dim, {}) for dim in tensor.dims]
        rest = others(along, len(at))
        step = number_of({str(dim): at[dim] for dim in rest}, {str(dim): sizes[dim] for dim in rest})
        place = (tirx.truncdiv(at[along], i64(self.lanes)), step, self.vectors.ramp(0))
        return bound(loaded(I.Bind(self.function.buffers[read.tensor][place]), tensor.dtype))

    def _copy_shape(self) -> list[TirExpr]:
        """The dims of the slides as a whole tile needs them; the last one is residues and whole vectors of each."""
        shape = []
        for slide in self.program.slides[:-1]:
            block = i64(self.kernel["block"]) if slide is self.program.block else self.extents[slide.axis]
            shape.append(slide.span(tirx.max(block, i64(1))))
        beyond = -(-(self.vector.reach // self.vector.stride) // self.lanes)
        return [*shape, i64(len(self.program.phases)), i64((self.kernel["chunk"] + beyond) * self.lanes)]

    def _clear(self, copy: TirExpr, shape: Sequence[TirExpr]) -> None:
        """Zero, once: the last vectors of a ragged tile reach past what is copied. Memory that nobody wrote may hold
        denormal numbers, with which many CPUs compute far slower."""
        nothing = constant(0, register_type(self.source.dtype), self.lanes)
        with ExitStack() as loops:
            at = [loops.enter_context(I.serial(i64(0), size)) for size in shape[:-1]]
            with I.serial(i64(0), tirx.truncdiv(shape[-1], i64(self.lanes))) as number:
                I.buffer_store(copy, nothing, [*at, self.vectors.ramp(number * i64(self.lanes))])

    def bounds(self, number: TirExpr) -> tuple[Index, Index]:
        """Of the tile of that number: the index of each axis at its first element, and how many values axes take."""
        position = position_of(number, self.counts)
        starts = {axis: I.Bind(position[axis] * i64(step)) for axis, step in self.steps.items()}
        sizes = {slide.axis: self.extents[slide.axis] for slide in self.program.slides}
        for axis in (axis for axis in sizes if axis in starts):
            sizes[axis] = I.Bind(tirx.min(self.extents[axis] - starts[axis], i64(self.steps[axis])))
        return {**dict.fromkeys(sizes, i64(0)), **starts}, sizes


@dataclass(frozen=True)
class Tile:
    """One tile while it is written. ``copy``: what it reads. ``starts``: the index of every axis of the output at its
    first element; ``sizes``: how many values the axes take that it spans, less than a whole tile at the ends."""

    nest: TileNest
    copy: TirExpr
    starts: Index
    sizes: Index

    def reader(self, offsets: Index, tap: Tap, limit: TirExpr | None = None) -> Reader:
        """A reader of vectors of operands as they lie in memory, at offsets from the tile's first element."""
        index = {axis: start + offsets[axis] if axis in offsets else start for axis, start in self.starts.items()}
        index |= {axis: i64(value) for axis, value in tap.items()}
        return self.nest.reader(index, self.nest.lanes, self.nest.vector.axis, limit)

    # -- the copy -----------------------------------------------------------------------------------------------------
    def fill(self) -> None:
        """Row after row: what is outside the tensor is its padding."""
        nest, program, vector = self.nest, self.nest.program, self.nest.vector
        # Reduced axes that move no window have one value.
        first_tap = dict.fromkeys(program.stage.reduce_axes, 0)
        at, to = self.reader({}, first_tap).indices(program.read), list[TirExpr]()
        slid = [slide.dim for slide in program.slides]
        dims = [*(dim for dim in range(len(at)) if dim not in slid), *slid[:-1]]
        with ExitStack() as loops:
            for slide in program.slides[:-1]:
                to.append(loops.enter_context(I.serial(i64(0), slide.span(self.sizes[slide.axis]))))
                at[slide.dim] = I.Bind(self.starts[slide.axis] * i64(slide.stride) + i64(slide.offset) + to[-1])
            # Vectors of each residue that a row needs.
            needed = self.sizes[vector.axis] + i64(vector.reach // vector.stride)
            count = tirx.truncdiv(needed + i64(nest.lanes - 1), i64(nest.lanes))
            if nest.padding is None or not dims:
                self._copy_row(at, to, count)
                return
            inside = [tirx.And(at[dim] >= i64(0), at[dim] < nest.dims[dim]) for dim in dims]
            with I.If(reduce(tirx.And, inside)):
                with I.Then():
                    self._copy_row(at, to, count)
                with I.Else(), I.serial(i64(0), count) as number:
                    for place in range(len(program.phases)):
                        self._store(to, place, number, self._outside())

    def _outside(self) -> TirExpr:
        return constant(self.nest.padding or 0, register_type(self.nest.source.dtype), self.nest.lanes)

    def _store(self, to: list[TirExpr], place: int, number: TirExpr, value: TirExpr) -> None:
        I.buffer_store(self.copy, value, [*to, i64(place), self.nest.vectors.ramp(number * i64(self.nest.lanes))])

    def _copy_row(self, at: list[TirExpr], to: list[TirExpr], count: TirExpr) -> None:
        """From indices ``at`` of the tensor to ``to`` of the copy. Vectors at the ends may reach past the tensor."""
        vector, count_of_lanes = self.nest.vector, self.nest.lanes
        first = self.starts[vector.axis] * i64(vector.stride) + i64(vector.offset)
        step, size = i64(vector.stride * count_of_lanes), self.nest.dims[vector.dim]

        def vectors(begin: TirExpr, end: TirExpr, is_masked: bool) -> None:
            with I.serial(begin, end) as number:
                starts = [first + number * step + i64(part * count_of_lanes) for part in range(vector.stride)]
                parts = [self._load([*at[: vector.dim], self.nest.vectors.ramp(start)], is_masked) for start in starts]
                for place, phase in enumerate(self.nest.program.phases):
                    lanes = [tirx.IntImm("int32", phase + lane * vector.stride) for lane in range(count_of_lanes)]
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
        buffer, dtype = self.nest.function.buffers[self.nest.source.name], self.nest.source.dtype
        if not is_masked:
            return bound(loaded(bound(buffer[tuple(place)]), dtype))
        zero, size = (tirx.Broadcast(end, self.nest.lanes) for end in (i64(0), self.nest.dims[self.nest.vector.dim]))
        inside = tirx.And(place[-1] >= zero, place[-1] < size)
        value = bound(loaded(bound(loaded_where(inside, buffer, place)), dtype))
        return value if self.nest.padding is None else bound(tirx.Select(inside, value, self._outside()))

    # -- the computation ----------------------------------------------------------------------------------------------
    def compute(self) -> None:
        """Groups of vectors, then single ones, the last of which may be ragged."""
        axis, lanes, vectors = self.nest.vector.axis, self.nest.lanes, self.nest.kernel["vectors"]
        is_whole = (self.nest.workload.sizes[axis].constant or 1) % lanes == 0
        known, size = self._known(i64(0), None, is_along=False), self.sizes[axis]
        groups = I.Bind(tirx.truncdiv(size, i64(lanes * vectors)))
        with I.serial(i64(0), groups) as group:
            self._columns(known, group * i64(lanes * vectors), vectors, None)
        with I.serial(groups * i64(vectors), tirx.truncdiv(size + i64(lanes - 1), i64(lanes))) as number:
            self._columns(known, number * i64(lanes), 1, None if is_whole else self.nest.extents[axis])

    def _known(self, column: TirExpr, limit: TirExpr | None, is_along: bool) -> Known:
        """What is the same at all positions in some columns: reads along the vectors, or the others."""
        program, vector = self.nest.program, self.nest.vector.axis
        known: dict[tuple[Read, tuple[int, ...]], TirExpr] = {}
        tiled = {slide.axis for slide in program.slides[:-1]}
        for read in dict.fromkeys(reads(program.stage.body)):
            if read == program.read or axes_of(read) & tiled or (vector in axes_of(read)) != is_along:
                continue
            for tap in map(dict, program.taps):
                key = program.key(read, tap)
                if key not in known:
                    known[key] = self.nest.operand(self.reader({vector: column}, tap, limit), read)
        return known

    def _columns(self, shared: Known, column: TirExpr, vectors: int, limit: TirExpr | None) -> None:
        """All positions in the columns from ``column`` on: in groups along the innermost axis, then one by one."""
        starts = [column + i64(number * self.nest.lanes) for number in range(vectors)]
        known = [{**shared, **self._known(start, limit, is_along=True)} for start in starts]
        block = partial(self.block, starts, limit, known)
        if self.nest.program.inner is None:
            block({}, 1).emit()
            return
        *outer, inner = (slide.axis for slide in self.nest.program.slides[:-1])
        with ExitStack() as loops:
            offsets = {axis: loops.enter_context(I.serial(i64(0), self.sizes[axis])) for axis in outer}
            self.positions(lambda start, count: block({**offsets, inner: start}, count).emit())

    def block(
        self, starts: Sequence[TirExpr], limit: TirExpr | None, known: Sequence[Known], offsets: Index, rows: int
    ) -> Block:
        """Register blocks as they are given to ``Block``."""
        return Block(self, starts, limit, known, offsets, rows)

    def positions(self, write: Callable[[TirExpr, int], None]) -> None:
        """``write`` the groups of positions along the innermost axis, given the first one and how many they are."""
        inner = self.nest.program.inner
        assert inner is not None
        in_groups_to(self.sizes[inner.axis], self.nest.kernel["rows"], write)


class Block:
    """Writes a register block: ``rows`` positions along the innermost axis from ``offsets`` on, times the vectors from
    each of ``starts`` on, with what is ``known`` of it; ``limit``: where the axis ends, if within them."""

    def __init__(
        self, tile: Tile, starts: Sequence[TirExpr], limit: TirExpr | None, known: Sequence[Known], offsets: Index,
        rows: int,
    ) -> None:  # fmt: skip
        self.tile, self.nest, self.program, self.stage = tile, tile.nest, tile.nest.program, tile.nest.program.stage
        self.starts, self.limit, self.known, self.offsets = starts, limit, known, offsets
        self.places = [(column, row) for row in range(rows) for column in range(len(starts))]
        self.computed, self.ramp = self.nest.types.reduced_type(self.stage), self.nest.vectors.ramp(0)
        self.loads: dict[tuple[int, ...], TirExpr] = {}
        self.totals: dict[Place, TirExpr] = {}

    def emit(self) -> None:
        for turn in self.turns():
            self.add(*turn)
        self.write()

    def turns(self) -> list[tuple[Place, Tap]]:
        """Every place with every element of its window, those that read the same vector one after the other."""
        turns = [(place, dict(tap)) for tap in self.program.taps for place in self.places]
        return sorted(turns, key=lambda turn: (self.source_of(*turn), turn[0]))

    def write(self) -> None:
        for place in self.places:
            write_outputs((self.stage, *self.program.after), self.total(place), self.reader(place, {}))

    def source_of(self, place: Place, tap: Tap) -> tuple[int, ...]:
        """From the first element of the block to the one that is read, by dim of the copy."""
        inner, row = self.program.inner, place[1]
        return tuple(slide.step(tap) + (row * slide.stride if slide is inner else 0) for slide in self.program.slides)

    def add(self, place: Place, tap: Tap) -> None:
        reader = self.reader(place, tap)
        evaluator = replace(reader.evaluator(NOTHING), read=partial(self._read, reader, place, tap))
        if place not in self.totals:
            self.totals[place] = I.alloc_buffer((self.nest.lanes,), self.computed)
            value = bound(evaluator.value(self.stage.body, self.computed))
        else:
            value = addition(self.stage, self.computed, evaluator)(self.total(place))
        I.buffer_store(self.totals[place], value, [self.ramp])

    def total(self, place: Place) -> TirExpr:
        return bound(self.totals[place][self.ramp])

    def _read(self, reader: Reader, place: Place, tap: Tap, read: Read) -> TirExpr:
        if read == self.program.read:
            return self.window(place, tap)
        known, key = self.known[place[0]], self.program.key(read, tap)
        return known[key] if key in known else self.nest.operand(reader, read)

    def window(self, place: Place, tap: Tap) -> TirExpr:
        *steps, last = self.source_of(place, tap)
        key = (place[0], *steps, last)
        if key not in self.loads:
            slides = zip(self.program.slides[:-1], steps, strict=True)
            at = [self.offsets[slide.axis] * i64(slide.stride) + i64(step) for slide, step in slides]
            shift, phase = divmod(last, self.nest.vector.stride)
            ramp = self.nest.vectors.ramp(self.starts[place[0]] + i64(shift))
            self.loads[key] = bound(self.tile.copy[(*at, i64(self.program.phases.index(phase)), ramp)])
        return self.loads[key]

    def reader(self, place: Place, tap: Tap) -> Reader:
        column, row = place
        offsets = {**self.offsets, self.nest.vector.axis: self.starts[column]}
        if self.program.inner is not None:
            offsets[self.program.inner.axis] = offsets[self.program.inner.axis] + i64(row)
        return self.tile.reader(offsets, tap, self.limit)
