"""The part of the input that a tile needs, copied to where nothing lies outside and all loads are contiguous.

A row of the copy holds, one after the other, the elements of each residue modulo the stride along the vectors: windows
two elements apart read the even elements, and the odd ones, as contiguous vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Reader
from tuner.schedule.rules.stencil.pattern import WindowProgram
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.memory import Vectors, loaded_where


@dataclass(frozen=True)
class Tile:
    """One tile while it is written. ``copy``: what it reads, as ``copy_shape`` has it. ``starts``: the index of every
    axis of the output at its first element; ``sizes``: how many values the axes take that it spans, less than a whole
    tile at the ends."""

    task: SearchTask
    kernel: MicroKernel
    function: KernelFunction
    program: WindowProgram
    vectors: Vectors
    copy: TirExpr
    starts: Mapping[str, TirExpr]
    sizes: Mapping[str, TirExpr]

    def reader(self, index: Mapping[str, TirExpr], limit: TirExpr | None = None) -> Reader:
        """Of operands as they lie in memory: vectors of them from ``index`` on, before ``limit``."""
        buffers, along = self.function.buffers, self.program.vector.axis
        return Reader(self.task.workload, self.function, buffers, index, self.vectors.lanes, along, limit)


def copy_shape(
    program: WindowProgram, kernel: MicroKernel, extents: Mapping[str, TirExpr], lanes: int
) -> list[TirExpr]:  # fmt: skip
    """The dims of ``program.slides`` as a whole tile needs them; the last one is residues and whole vectors of each."""
    shape = []
    for slide in program.slides[:-1]:
        block = i64(kernel["block"]) if slide is program.block else extents[slide.axis]
        shape.append(i64(slide.stride) * (tirx.max(block, i64(1)) - i64(1)) + i64(slide.reach + 1))
    beyond = -(-(program.vector.reach // program.vector.stride) // lanes)
    return [*shape, i64(len(program.phases)), i64((kernel["chunk"] + beyond) * lanes)]


class Scratch:
    """Writes the copy of a tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.vector, self.phases = tile, tile.program.vector, tile.program.phases
        self.vectors, self.lanes = tile.vectors, tile.vectors.lanes
        tensor = tile.task.workload.tensors[tile.program.read.tensor]
        self.source, self.dtype = tile.function.buffers[tensor.name], tensor.dtype
        self.sizes = [dim_expr(dim, tile.function.symbols) for dim in tensor.dims]
        self.padding = dict(tile.task.workload.padding).get(tensor.name)
        self.outside = constant(self.padding or 0, register_type(tensor.dtype), self.lanes)

    def fill(self) -> None:
        """Row after row: what is outside the tensor is its padding."""
        tile, program = self.tile, self.tile.program
        # Reduced axes that move no window have one value.
        index = {**tile.starts, **dict.fromkeys(program.stage.reduce_axes, i64(0))}
        at, to = tile.reader(index).indices(program.read), list[TirExpr]()
        slid = {slide.dim for slide in program.slides}
        inside = [self._is_inside(dim, value) for dim, value in enumerate(at) if dim not in slid]
        with ExitStack() as loops:
            for slide in program.slides[:-1]:
                count = i64(slide.stride) * (tile.sizes[slide.axis] - i64(1)) + i64(slide.reach + 1)
                number = loops.enter_context(I.serial(i64(0), count))
                here = I.Bind(tile.starts[slide.axis] * i64(slide.stride) + i64(slide.offset) + number)
                at[slide.dim] = here
                to.append(number)
                inside.append(self._is_inside(slide.dim, here))
            if self.padding is None or not inside:
                self._copy_row(at, to)
                return
            with I.If(reduce(tirx.And, inside)):
                with I.Then():
                    self._copy_row(at, to)
                with I.Else(), I.serial(i64(0), self._count()) as number:
                    for place in range(len(self.phases)):
                        self._store(to, place, number, self.outside)

    def _is_inside(self, dim: int, index: TirExpr) -> TirExpr:
        return tirx.And(index >= i64(0), index < self.sizes[dim])

    def _count(self) -> TirExpr:
        """Vectors of each residue that a row needs."""
        needed = self.tile.sizes[self.vector.axis] + i64(self.vector.reach // self.vector.stride)
        return tirx.truncdiv(needed + i64(self.lanes - 1), i64(self.lanes))

    def _store(self, to: list[TirExpr], place: int, number: TirExpr, value: TirExpr) -> None:
        I.buffer_store(self.tile.copy, value, [*to, i64(place), self.vectors.ramp(number * i64(self.lanes))])

    def _copy_row(self, at: list[TirExpr], to: list[TirExpr]) -> None:
        """From indices ``at`` of the tensor to ``to`` of the copy. Vectors at the ends may reach past the tensor."""
        vector, count = self.vector, self._count()
        first = self.tile.starts[vector.axis] * i64(vector.stride) + i64(vector.offset)
        step, size = i64(vector.stride * self.lanes), self.sizes[vector.dim]

        def vectors(begin: TirExpr, end: TirExpr, is_masked: bool) -> None:
            with I.serial(begin, end) as number:
                start = first + number * step
                starts = [start + i64(part * self.lanes) for part in range(vector.stride)]
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
        """A vector of the tensor."""
        if not is_masked:
            return bound(loaded(bound(self.source[tuple(place)]), self.dtype))
        size = tirx.Broadcast(self.sizes[self.vector.dim], self.lanes)
        inside = tirx.And(place[-1] >= tirx.Broadcast(i64(0), self.lanes), place[-1] < size)
        value = bound(loaded(bound(loaded_where(inside, self.source, place)), self.dtype))
        return value if self.padding is None else bound(tirx.Select(inside, value, self.outside))
