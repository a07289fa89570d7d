"""The part of the input that a tile needs, copied to where nothing lies outside and all loads are contiguous.

A row of the copy holds, one after the other, the elements of each residue modulo the stride along the vectors: windows
two elements apart read the even elements, and the odd ones, as contiguous vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.program.workload import Workload
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Reader
from tuner.schedule.rules.stencil.pattern import Slide, Tile, WindowProgram
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.memory import loaded_where


class Scratch:
    """Writes the copy of a tile. ``shape``: the dims of ``program.slides``, of which the last is residues and pitch."""

    def __init__(
        self, workload: Workload, program: WindowProgram, function: KernelFunction, kernel: MicroKernel, lanes: int
    ) -> None:
        self.workload, self.program, self.function, self.lanes = workload, program, function, lanes
        self.source = function.buffers[program.read.tensor]
        tensor = workload.tensors[program.read.tensor]
        self.source_dtype, self.dtype = tensor.dtype, register_type(tensor.dtype)
        self.sizes = [dim_expr(dim, function.symbols) for dim in tensor.dims]
        self.padding = dict(workload.padding).get(tensor.name)
        self.shape = [self._most(slide, kernel) for slide in program.slides[:-1]]
        self.shape += [i64(len(program.phases)), i64(pitch_of(program, kernel["chunk"], lanes))]

    def _most(self, slide: Slide, kernel: MicroKernel) -> TirExpr:
        """Elements along a dim that a whole tile needs."""
        block = i64(kernel["block"]) if slide is self.program.block else self.function.extents[slide.axis]
        return i64(slide.stride) * (tirx.max(block, i64(1)) - i64(1)) + i64(slide.reach + 1)

    def fill(self, buffer: TirExpr, tile: Tile) -> None:
        """The copy of what ``tile`` reads; what is outside the tensor is its padding."""
        # Reduced axes that move no window have one value.
        index = {**tile.starts, **dict.fromkeys(self.program.stage.reduce_axes, i64(0))}
        reader = Reader(self.workload, self.function, self.function.buffers, index, 1, None)
        slid = {slide.dim for slide in self.program.slides}
        at = reader.indices(self.program.read)
        inside = [one for dim, value in enumerate(at) if dim not in slid for one in self._is_inside(dim, value)]
        self._loops(buffer, tile, self.program.slides[:-1], at, [], inside)

    def _is_inside(self, dim: int, value: TirExpr) -> list[TirExpr]:
        """The condition that an index is within the tensor; none if it always is."""
        if self.padding is None:
            return []
        return [tirx.And(value >= i64(0), value < self.sizes[dim])]

    def _loops(
        self,
        buffer: TirExpr,
        tile: Tile,
        slides: Sequence[Slide],
        at: list[TirExpr],
        to: list[TirExpr],
        inside: list[TirExpr],
    ) -> None:
        """Over the rows of the copy. ``at``: indices of the source, ``to``: of the copy so far."""
        if not slides:
            self._row(buffer, tile, at, to, inside)
            return
        slide, *rest = slides
        count = i64(slide.stride) * (tile.sizes[slide.axis] - i64(1)) + i64(slide.reach + 1)
        with I.serial(i64(0), count) as number:
            here = I.Bind(tile.starts[slide.axis] * i64(slide.stride) + i64(slide.offset) + number)
            there = [here if dim == slide.dim else index for dim, index in enumerate(at)]
            self._loops(buffer, tile, rest, there, [*to, number], [*inside, *self._is_inside(slide.dim, here)])

    # -- rows -----------------------------------------------------------------------------------------------------
    def _row(self, buffer: TirExpr, tile: Tile, at: list[TirExpr], to: list[TirExpr], inside: list[TirExpr]) -> None:
        if not inside:
            self._copied(buffer, tile, at, to)
            return
        condition = inside[0]
        for other in inside[1:]:
            condition = tirx.And(condition, other)
        with I.If(condition):
            with I.Then():
                self._copied(buffer, tile, at, to)
            with I.Else():
                self._padded(buffer, tile, to)

    def _count(self, tile: Tile) -> TirExpr:
        """Vectors of each residue that a row needs."""
        vector = self.program.vector
        needed = tile.sizes[vector.axis] + i64(vector.reach // vector.stride)
        return tirx.truncdiv(needed + i64(self.lanes - 1), i64(self.lanes))

    def _copied(self, buffer: TirExpr, tile: Tile, at: list[TirExpr], to: list[TirExpr]) -> None:
        """A row whose vectors at the ends may reach past the tensor."""
        vector, count = self.program.vector, self._count(tile)
        first = tile.starts[vector.axis] * i64(vector.stride) + i64(vector.offset)
        step, size = i64(vector.stride * self.lanes), self.sizes[vector.dim]
        begin: TirExpr = i64(0)
        if vector.offset < 0:
            begin = I.Bind(tirx.min(count, tirx.truncdiv(tirx.max(step - i64(1) - first, i64(0)), step)))
            self._vectors(buffer, at, to, first, (i64(0), begin), True)
        end = I.Bind(tirx.max(begin, tirx.min(count, tirx.truncdiv(size - first, step))))
        self._vectors(buffer, at, to, first, (begin, end), False)
        self._vectors(buffer, at, to, first, (end, count), True)

    def _vectors(
        self,
        buffer: TirExpr,
        at: list[TirExpr],
        to: list[TirExpr],
        first: TirExpr,
        numbers: tuple[TirExpr, TirExpr],
        is_masked: bool,
    ) -> None:
        """Some vectors of every residue of a row."""
        stride, phases = self.program.vector.stride, self.program.phases
        with I.serial(*numbers) as number:
            start = first + number * i64(stride * self.lanes)
            parts = [self._part(at, start + i64(part * self.lanes), is_masked) for part in range(stride)]
            for place, phase in enumerate(phases):
                value = parts[0] if stride == 1 else self._strided(parts, phase)
                column = tirx.Ramp(number * i64(self.lanes), i64(1), self.lanes)
                I.buffer_store(buffer, value, [*to, i64(place), column])

    def _part(self, at: list[TirExpr], start: TirExpr, is_masked: bool) -> TirExpr:
        """A vector of the source."""
        ramp, prefix = tirx.Ramp(start, i64(1), self.lanes), at[: self.program.vector.dim]
        if not is_masked:
            return bound(loaded(bound(self.source[(*prefix, ramp)]), self.source_dtype))
        low = ramp >= tirx.Broadcast(i64(0), self.lanes)
        inside = tirx.And(low, ramp < tirx.Broadcast(self.sizes[self.program.vector.dim], self.lanes))
        value = bound(loaded(bound(loaded_where(inside, self.source, (*prefix, ramp))), self.source_dtype))
        return value if self.padding is None else bound(tirx.Select(inside, value, self._nothing))

    def _strided(self, parts: list[TirExpr], phase: int) -> TirExpr:
        lanes = [phase + lane * len(parts) for lane in range(self.lanes)]
        return tirx.Shuffle(parts, [tirx.IntImm("int32", lane) for lane in lanes])

    def _padded(self, buffer: TirExpr, tile: Tile, to: list[TirExpr]) -> None:
        with I.serial(i64(0), self._count(tile)) as number:
            for place in range(len(self.program.phases)):
                column = tirx.Ramp(number * i64(self.lanes), i64(1), self.lanes)
                I.buffer_store(buffer, self._nothing, [*to, i64(place), column])

    @property
    def _nothing(self) -> TirExpr:
        """What is outside the tensor."""
        return constant(self.padding or 0, self.dtype, self.lanes)


def pitch_of(program: WindowProgram, chunk: int, lanes: int) -> int:
    """Elements of one residue of a row of the copy: whole vectors."""
    return (chunk + -(-(program.vector.reach // program.vector.stride) // lanes)) * lanes
