"""Reads of tensors at the indices of a program: clamped, padded, in vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.program.expr import Expr as Ast
from tuner.program.expr import Read, axes_of
from tuner.program.program import index_dim
from tuner.program.workload import Workload
from tuner.schedule.function import KernelFunction
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.memory import Vectors, loaded_where


@dataclass(frozen=True)
class Reader:
    """Reads at ``index`` (int64 by axis): one element, or ``lanes`` of them from there ``along`` an axis."""

    workload: Workload
    function: KernelFunction
    buffers: Mapping[str, TirExpr]
    index: Mapping[str, TirExpr]
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
        buffer = self.buffers[read.tensor]
        at = self.indices(read)
        lanes = self.lanes if self.along in axes_of(read) else 1
        padding = dict(self.workload.padding).get(read.tensor)
        value = self._plain(buffer, at, lanes) if padding is None else self._padded(read, buffer, at, lanes)
        value = bound(loaded(I.Bind(value), dtype))
        if padding is None:
            return value
        inside = self._inside(read, at, lanes)
        return I.Bind(tirx.Select(inside, value, constant(padding, register_type(dtype), lanes)))

    def indices(self, read: Read) -> list[TirExpr]:
        """The indices of the element, or of the first one of the vector."""
        return [self._index(read, position) for position in range(len(read.indices))]

    def _plain(self, buffer: TirExpr, at: list[TirExpr], lanes: int) -> TirExpr:
        if lanes == 1 or self.limit is None:
            return buffer[tuple(self._last(at, lanes))]
        # The vector's last index may be an offset past the axis' own value.
        limit = at[-1] + (self.limit - self.index[str(self.along)])
        return Vectors(lanes).load(buffer, at[:-1], at[-1], limit)

    def _last(self, at: list[TirExpr], lanes: int) -> list[TirExpr]:
        return [*at[:-1], tirx.Ramp(at[-1], i64(1), lanes)] if lanes > 1 else at

    def _index(self, read: Read, position: int) -> TirExpr:
        """An index (of the first element of a vector) as int64."""
        index = read.indices[position]
        if isinstance(index, Read):
            size = self._size(read, position)
            element = tirx.Cast("int64", self._scalar(index))
            return I.Bind(tirx.max(tirx.min(element, size - i64(1)), i64(0)))
        return I.Bind(self._value(index))

    def _value(self, index: Ast) -> TirExpr:
        dim = index_dim(index)
        if dim is None:
            raise ValueError("the program's checks admit no such index")
        sizes = {f"extent({name})": value for name, value in self.function.extents.items()}
        return dim_expr(dim, {**sizes, **self.index})

    def _scalar(self, read: Read) -> TirExpr:
        """An element of an index tensor, itself read at plain indices."""
        inner = Reader(self.workload, self.function, self.buffers, self.index, 1, None)
        return inner.read(read)

    def _size(self, read: Read, position: int) -> TirExpr:
        return dim_expr(self.workload.tensors[read.tensor].dims[position], self.function.symbols)

    # -- padding --------------------------------------------------------------------------------------------------
    def _padded(self, read: Read, buffer: TirExpr, at: list[TirExpr], lanes: int) -> TirExpr:
        """What is there where the indices are inside; nothing is touched where they are not."""
        inside = self._inside(read, at, lanes)
        if lanes > 1:
            return loaded_where(inside, buffer, self._last(at, lanes))
        nothing = tirx.Cast(str(buffer.dtype), tirx.IntImm("int32", 0))
        return tirx.if_then_else(inside, buffer[tuple(at)], nothing)

    def _inside(self, read: Read, at: list[TirExpr], lanes: int) -> TirExpr:
        """Whether every index is within its dim: a bool, or a vector of them."""
        conditions = []
        for position, value in enumerate(at):
            size = self._size(read, position)
            if lanes > 1 and position == len(at) - 1:
                lane = tirx.Ramp(value, i64(1), lanes)
                low = lane >= tirx.Broadcast(i64(0), lanes)
                conditions.append(tirx.And(low, lane < tirx.Broadcast(size, lanes)))
            else:
                scalar = tirx.And(value >= i64(0), value < size)
                conditions.append(tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar)
        inside = conditions[0] if conditions else tirx.IntImm("bool", 1)
        for condition in conditions[1:]:
            inside = tirx.And(inside, condition)
        return inside
