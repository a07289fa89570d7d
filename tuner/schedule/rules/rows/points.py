"""Vectors of columns: the values of stages at one, and what reductions accumulate of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.program.expr import Binary, Read, axes_of
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Reader
from tuner.schedule.rules.rows.pattern import RowProgram
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, multiply_add
from tuner.schedule.vector.dtypes import cast, constant, loaded, stored
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors, rotated
from tuner.schedule.vector.reducers import COMBINE, identity


@dataclass(frozen=True)
class Settings:
    """What is the same for every block of rows. ``buffers``: operands by name, with merged dims; ``homes``: by stage
    where its columns are kept, as a buffer and whether that is a workspace of the block's rows alone.

    ``acc``, ``unroll``: vectors in a turn of a light pass and of one with costly functions; ``ahead``: whether the next
    block is prefetched.
    """

    workload: Workload
    program: RowProgram
    function: KernelFunction
    buffers: Mapping[str, TirExpr]
    homes: Mapping[str, tuple[TirExpr, bool]]
    lanes: int
    acc: int
    unroll: int
    ahead: bool

    def evaluator(self, lanes: int, read: Callable[[Read], TirExpr], axis: Callable[[str], TirExpr]) -> Evaluator:
        return Evaluator(self.program.types, lanes, read, axis, self.function.extents.__getitem__)

    def dtype(self, tensor: str) -> str:
        return self.program.types.of[tensor]


@dataclass
class Row:
    """One row of a block: its index, its number in the block, and the values that are known of it."""

    index: Mapping[str, TirExpr]
    number: int
    known: dict[str | Read, TirExpr] = field(default_factory=dict)


@dataclass
class Point:
    """One vector of columns of one row. ``columns``: the index of its first element; ``shared``: what is the same for
    all rows of the block; ``limit``: where the row ends, if that is within the vector."""

    settings: Settings
    row: Row
    columns: Mapping[str, TirExpr]
    limit: TirExpr | None
    shared: dict[Read, TirExpr]
    values: dict[str | Read, TirExpr] = field(default_factory=dict)

    def value(self, stage: Stage) -> TirExpr:
        """A stage over columns, in its tensor's dtype: from memory if an earlier pass wrote it, else computed once."""
        if stage.tensor not in self.values:
            dtype = self.settings.dtype(stage.tensor)
            self.values[stage.tensor] = bound(cast(bound(self.evaluator.value(stage.body)), dtype))
        return self.values[stage.tensor]

    @property
    def evaluator(self) -> Evaluator:
        return self.settings.evaluator(self.settings.lanes, self._read, self._axis)

    def _axis(self, name: str) -> TirExpr:
        frame = self.settings.program.frame
        if name == frame.vector:
            return tirx.Ramp(self.columns[name], i64(1), self.settings.lanes)
        return self.columns[name] if name in self.columns else self.row.index[name]

    def _read(self, read: Read) -> TirExpr:
        if read.tensor in self.row.known:
            return self.row.known[read.tensor]
        if read in self.row.known:
            return self.row.known[read]
        stage = next((stage for stage in self.settings.program.frame.stages if stage.tensor == read.tensor), None)
        if stage is not None:
            return self.value(stage)
        frame = self.settings.program.frame
        memory: dict[Any, TirExpr] = self.values if axes_of(read) & set(frame.rows) else self.shared
        if read not in memory:
            memory[read] = self.reader.read(read)
        return memory[read]

    @property
    def reader(self) -> Reader:
        settings = self.settings
        index = {**self.row.index, **self.columns}
        vector = settings.program.frame.vector
        return Reader(settings.workload, settings.function, settings.buffers, index, settings.lanes, vector, self.limit)

    def at(self, tensor: str) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer that holds a stage's columns, and the index of this vector in it without its last axis."""
        buffer, is_workspace = self.settings.homes[tensor]
        frame = self.settings.program.frame
        row = [i64(self.row.number)] if is_workspace else [self.row.index[axis] for axis in frame.rows]
        return buffer, [*row, *(self.columns[axis] for axis in frame.columns[:-1])]

    def load(self, tensor: str) -> None:
        """Take a stage's value from where an earlier pass left it."""
        buffer, prefix = self.at(tensor)
        column = self.columns[self.settings.program.frame.vector]
        value = I.Bind(Vectors(self.settings.lanes).load(buffer, prefix, column, self.limit))
        self.values[tensor] = bound(loaded(value, self.settings.dtype(tensor)))

    def store(self, stage: Stage, value: TirExpr) -> None:
        buffer, prefix = self.at(stage.tensor)
        column = self.columns[self.settings.program.frame.vector]
        result = stored(value, self.settings.dtype(stage.tensor))
        Vectors(self.settings.lanes).store(buffer, result, prefix, column, self.limit)


class Accumulators:
    """The vectors in which one reduction of one row is accumulated."""

    def __init__(self, settings: Settings, stage: Stage, count: int) -> None:
        self.vectors, self.stage = Vectors(settings.lanes), stage
        self.dtype = settings.program.types.reduced_type(stage)
        self.combine = COMBINE[str(stage.reducer)]
        start = constant(identity(str(stage.reducer), self.dtype), self.dtype, settings.lanes)
        self.buffers = [I.alloc_buffer((settings.lanes,), self.dtype) for _ in range(count)]
        for number in range(count):
            self._put(number, start)

    def add(self, point: Point, number: int) -> None:
        """Combine the value at a point with accumulator ``number``."""
        body, before = self.stage.body, bound(self._get(number))
        evaluator = point.evaluator
        if isinstance(body, Binary) and body.operator == "*" and self._is_float_sum:
            left, right = (bound(evaluator.value(side, self.dtype)) for side in (body.left, body.right))
            # Not the sum is masked: of a masked multiply-add LLVM may load an operand without its mask, past the row.
            left, right = (
                self._within(point, side, constant(0, self.dtype, point.settings.lanes)) for side in (left, right)
            )
            value = multiply_add(left, right, before)
        else:
            value = self.combine(bound(evaluator.value(body, self.dtype)), before)
            value = self._within(point, bound(value), before)
        self._put(number, value)

    def _within(self, point: Point, value: TirExpr, otherwise: TirExpr) -> TirExpr:
        """``value`` before the end of the row, ``otherwise`` in the lanes past it."""
        if point.limit is None:
            return value
        column = point.columns[point.settings.program.frame.vector]
        return bound(tirx.Select(self.vectors.mask(column, point.limit), value, otherwise))

    @property
    def _is_float_sum(self) -> bool:
        return self.stage.reducer == "sum" and self.dtype.startswith("float")

    def total(self) -> TirExpr:
        """One scalar: pairs of accumulators, then halves of the last one.

        By way of the buffers, which LLVM turns into registers: the simplifier takes exponential time over a chain of
        names that are used several times each.
        """
        count = len(self.buffers)
        while count > 1:
            for number in range(count // 2):
                self._put(number, self.combine(bound(self._get(2 * number)), bound(self._get(2 * number + 1))))
            if count % 2:
                self._put(count // 2, self._get(count - 1))
            count -= count // 2
        span = self.vectors.lanes // 2
        while span:
            whole = bound(self._get(0))
            self._put(0, self.combine(bound(rotated(whole, span)), whole))
            span //= 2
        return bound(tirx.Shuffle([bound(self._get(0))], [tirx.IntImm("int32", 0)]))

    def _put(self, number: int, value: TirExpr) -> None:
        I.buffer_store(self.buffers[number], value, [self.vectors.ramp(0)])

    def _get(self, number: int) -> TirExpr:
        return self.buffers[number][self.vectors.ramp(0)]
