"""Reads and writes of tensors at the indices of a program, clamped, padded, in vectors; and what reductions
accumulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Binary, Read, axes_of
from tuner.program.language.notation import Stage
from tuner.program.language.program import index_dim
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound, like, multiply_add, named
from tuner.schedule.vector.dtypes import cast, constant, element_type, loaded, register_type, stored
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.functions import COMBINE, identity
from tuner.schedule.vector.memory import Vectors, loaded_where, rotated

Index = Mapping[str, TirExpr]
"""The value of each axis, int64."""
Known = Mapping[str | Read, TirExpr]
"""Values of reads, or of tensors at their own indices."""
NOTHING: Known = {}


@dataclass(frozen=True)
class Reader:
    """Reads and writes at ``index``: one element, or ``lanes`` of them from there ``along`` an axis."""

    workload: Workload
    function: KernelFunction
    buffers: Mapping[str, TirExpr]
    index: Index
    lanes: int
    along: str | None
    limit: TirExpr | None = None
    """Elements of a vector at and past this value of ``along`` are not touched and give zero; for tensors without
    padding."""

    def axis(self, name: str) -> TirExpr:
        """The value of an axis: a vector of consecutive ones for the axis that vectors run along."""
        return tirx.Ramp(self.index[name], i64(1), self.lanes) if name == self.along else self.index[name]

    def read(self, read: Read) -> TirExpr:
        """The element, or the vector, as it stands in a register."""
        dtype = self.workload.tensors[read.tensor].dtype
        buffer, at = self.buffers[read.tensor], self.indices(read)
        lanes = self.lanes if self.along in axes_of(read) else 1
        padding = dict(self.workload.padding).get(read.tensor)
        if padding is None:
            return bound(loaded(I.Bind(self._plain(buffer, at, lanes)), dtype))
        # Nothing is touched outside.
        inside = self._inside(read, at, lanes)
        if lanes > 1:
            there = loaded_where(inside, buffer, [*at[:-1], tirx.Ramp(at[-1], i64(1), lanes)])
        else:
            nothing = tirx.Cast(str(buffer.dtype), tirx.IntImm("int32", 0))
            there = tirx.if_then_else(inside, buffer[tuple(at)], nothing)
        value = bound(loaded(I.Bind(there), dtype))
        return named(tirx.Select(inside, value, constant(padding, register_type(dtype), lanes)))

    def indices(self, read: Read) -> list[TirExpr]:
        """The indices of the element, or of the first one of the vector."""
        return [I.Bind(self._index(read, position)) for position in range(len(read.indices))]

    def evaluator(self, known: Known, types: ElementTypes | None = None) -> Evaluator:
        """Writes expressions at this index. ``known`` may grow later; ``types``: the workload's, if not given."""

        def read(node: Read) -> TirExpr:
            if node.tensor in known:
                return known[node.tensor]
            return known[node] if node in known else self.read(node)

        extent = self.function.extents.__getitem__
        return Evaluator(types or self.workload.element_types, self.lanes, read, self.axis, extent)

    def write(self, stage: Stage, value: TirExpr) -> None:
        """Store a stage's ``value`` in a register, of the tensor's dtype; it is used several times: bind it."""
        self._store(stage, stored(value, self.workload.tensors[stage.tensor].dtype))

    def _store(self, stage: Stage, value: TirExpr) -> None:
        at = [self.index[axis] for axis in stage.axes]
        if self.lanes == 1:
            I.buffer_store(self.buffers[stage.tensor], value, at)
        else:
            Vectors(self.lanes).store(self.buffers[stage.tensor], value, at[:-1], at[-1], self.limit)

    def copy(self, stage: Stage, read: Read) -> None:
        """Store the bits of ``read``, which has the stage's dtype and no padding: short floats are not converted."""
        lanes = self.lanes if self.along in axes_of(read) else 1
        value = I.Bind(self._plain(self.buffers[read.tensor], self.indices(read), lanes))
        if lanes < self.lanes:
            value = tirx.Broadcast(value, self.lanes)
        self._store(stage, value)

    def within(self, value: TirExpr, otherwise: TirExpr) -> TirExpr:
        """``value`` before the limit, ``otherwise`` in the lanes past it."""
        if self.limit is None:
            return value
        return bound(tirx.Select(Vectors(self.lanes).mask(self.index[str(self.along)], self.limit), value, otherwise))

    def _index(self, read: Read, position: int) -> TirExpr:
        index = read.indices[position]
        if isinstance(index, Read):
            scalar = Reader(self.workload, self.function, self.buffers, self.index, 1, None)
            size = self._size(read, position)
            return tirx.max(tirx.min(tirx.Cast("int64", scalar.read(index)), size - i64(1)), i64(0))
        dim = index_dim(index)
        if dim is None:
            raise ValueError("the program's checks admit no such index")
        sizes = {f"extent({name})": value for name, value in self.function.extents.items()}
        return dim_expr(dim, {**sizes, **self.index})

    def _size(self, read: Read, position: int) -> TirExpr:
        return dim_expr(self.workload.tensors[read.tensor].dims[position], self.function.symbols)

    def _plain(self, buffer: TirExpr, at: list[TirExpr], lanes: int) -> TirExpr:
        if lanes == 1:
            return buffer[tuple(at)]
        # The vector's last index may be an offset past the axis' own value.
        limit = None if self.limit is None else at[-1] + (self.limit - self.index[str(self.along)])
        return Vectors(lanes).load(buffer, at[:-1], at[-1], limit)

    def _inside(self, read: Read, at: list[TirExpr], lanes: int) -> TirExpr:
        """Whether every index is within its dim: a bool, or a vector of them."""
        sizes = [self._size(read, position) for position in range(len(at))]
        inside = [tirx.And(value >= i64(0), value < size) for value, size in zip(at, sizes, strict=True)]
        if lanes > 1:
            lane, size = tirx.Ramp(at[-1], i64(1), lanes), tirx.Broadcast(sizes[-1], lanes)
            along = tirx.And(lane >= tirx.Broadcast(i64(0), lanes), lane < size)
            inside = [*(tirx.Broadcast(condition, lanes) for condition in inside[:-1]), along]
        return reduce(tirx.And, inside) if inside else tirx.IntImm("bool", 1)


def in_register(value: TirExpr, dtype: str) -> TirExpr:
    """``value`` as an element of ``dtype``, computed once."""
    return bound(cast(bound(value), dtype))


def kept_as(stage: Stage, value: TirExpr, dtype: str, extents: Mapping[str, TirExpr]) -> TirExpr:
    """What a stage computes as an element of its tensor, of ``dtype``, computed once. ``value`` of a reduction is in
    the type that it is done in, whose least and largest numbers are not those of ``dtype``."""
    kept, sizes = in_register(value, dtype), [extents[axis] for axis in stage.reduce_axes]
    dynamic = [size for size in sizes if not isinstance(size, tirx.IntImm)]
    if stage.reducer is None or not dynamic:
        return kept
    nothing = identity(stage.reducer, dtype)
    if nothing == identity(stage.reducer, element_type(value)):
        return kept
    is_empty = reduce(tirx.Or, [size <= i64(0) for size in dynamic])
    return bound(tirx.Select(is_empty, like(nothing, kept), kept))


class Nest:
    """What the loops of a kernel are written with. ``spans``: the span of each axis as a whole."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, lanes: int) -> None:
        self.workload, self.threads, self.kernel, self.function = task.workload, task.threads, kernel, function
        self.types, self.lanes, self.vectors = task.workload.element_types, lanes, Vectors(lanes)
        self.extents = function.extents
        self.spans = {axis: (i64(0), extent) for axis, extent in self.extents.items()}

    def reader(self, index: Index, lanes: int = 1, along: str | None = None, limit: TirExpr | None = None) -> Reader:
        """One element at ``index``, or a vector ``along`` an axis."""
        along = along if lanes > 1 else None
        return Reader(self.workload, self.function, self.function.buffers, index, lanes, along, limit)


def write_outputs(stages: Sequence[Stage], value: TirExpr, reader: Reader) -> None:
    """``value`` is what the first of ``stages`` computes, one element or a vector along its last axis; the others
    follow from it.

    ``reader`` stands there, and reads what else the stages need. Those of the stages that have a buffer are stored.
    """
    known: dict[str | Read, TirExpr] = {}
    evaluator = reader.evaluator(known)
    for stage in stages:
        result = evaluator.value(stage.body) if known else value
        dtype = reader.workload.tensors[stage.tensor].dtype
        known[stage.tensor] = kept_as(stage, result, dtype, reader.function.extents)
        if stage.tensor in reader.buffers:
            reader.write(stage, known[stage.tensor])


def start_value(stage: Stage, dtype: str, lanes: int) -> TirExpr:
    """The value of a reduction over nothing."""
    return constant(identity(str(stage.reducer), dtype), dtype, lanes)


def addition(
    stage: Stage, dtype: str, evaluator: Evaluator, within: Callable[[TirExpr, TirExpr], TirExpr] | None = None
) -> Callable[[TirExpr], TirExpr]:
    """Writes one value of a reduction, in ``dtype``; what makes a new total of a bound one. ``within``: of two vectors
    the first one in the lanes that count, the second one in others."""
    body, combine = stage.body, COMBINE[str(stage.reducer)]
    if stage.reducer == "sum" and dtype.startswith("float") and isinstance(body, Binary) and body.operator == "*":
        left, right = (bound(evaluator.value(side, dtype)) for side in (body.left, body.right))
        if within is not None:
            # Not the sum is masked: of a masked multiply-add LLVM may load an operand without its mask, past the row.
            left, right = (within(side, like(0, side)) for side in (left, right))
        return partial(multiply_add, left, right)
    value = bound(evaluator.value(body, dtype))
    if within is None:
        return partial(combine, value)
    return lambda total: within(bound(combine(value, total)), total)


class Accumulators:
    """Vectors in which one reduction is accumulated, each in a buffer of its own, which LLVM turns into registers."""

    def __init__(self, stage: Stage, types: ElementTypes, vectors: Vectors, count: int) -> None:
        self.stage, self.dtype, self.vectors = stage, types.reduced_type(stage), vectors
        self.combine = COMBINE[str(stage.reducer)]
        self.buffers = [I.alloc_buffer((vectors.lanes,), self.dtype) for _ in range(count)]
        for number in range(count):
            self._put(number, start_value(stage, self.dtype, vectors.lanes))

    def add(self, number: int, evaluator: Evaluator, within: Callable[[TirExpr, TirExpr], TirExpr]) -> None:
        """One value more to accumulator ``number``; see ``addition``."""
        before = bound(self._get(number))
        self._put(number, addition(self.stage, self.dtype, evaluator, within)(before))

    def total(self) -> TirExpr:
        """One scalar: pairs of accumulators, then halves of the last one.

        By way of the buffers: the simplifier takes exponential time over a chain of names that are used several times
        each.
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
