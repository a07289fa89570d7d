"""What every part of an attention kernel's code looks at: its task, operands, extents and scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tuner.program.expr import Expr as Ast
from tuner.program.expr import Read
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Reader
from tuner.schedule.rules.attention.chain import DOTS, DTYPE, QUOTIENT, Chain
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors


@dataclass(frozen=True)
class Scratch:
    """What one thread keeps. ``keys`` [panels, d, nr]: k packed, or None; ``scores`` [rows, columns of a block];
    ``top`` and ``total`` [rows]; ``mixed`` [rows, e] and ``factor`` [rows] where there are several blocks."""

    keys: TirExpr
    scores: TirExpr
    top: TirExpr
    total: TirExpr
    factor: TirExpr = None
    mixed: TirExpr = None


@dataclass(frozen=True)
class Frame:
    """One kernel while it is written. ``extent`` and ``index``: by the chain's names of axes."""

    task: SearchTask
    chain: Chain
    kernel: MicroKernel
    function: KernelFunction
    vectors: Vectors
    extent: Mapping[str, TirExpr]
    index: Mapping[str, TirExpr]
    scratch: Scratch | None = None

    def at(self, index: Mapping[str, TirExpr]) -> Frame:
        return replace(self, index={**self.index, **index})

    def using(self, scratch: Scratch) -> Frame:
        return replace(self, scratch=scratch)

    @property
    def room(self) -> Scratch:
        if self.scratch is None:
            raise ValueError("no scratch is allocated yet")
        return self.scratch

    @property
    def lanes(self) -> int:
        return self.vectors.lanes

    @property
    def nr(self) -> int:
        """Columns of a panel of scores."""
        return int(self.kernel["nv"]) * self.lanes

    @property
    def is_blocked(self) -> bool:
        """Whether the columns are gone through in several blocks."""
        return bool(self.kernel["cols"])

    # -- operands -------------------------------------------------------------------------------------------------
    def place(self, read: Read, **index: TirExpr) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer of q, k or v, and the indices of an element."""
        reader = self._reader({**self.index, **index}, 1, None, None)
        return self.function.buffers[read.tensor], reader.indices(read)

    def element(self, read: Read, **index: TirExpr) -> TirExpr:
        buffer, at = self.place(read, **index)
        return self._widened(read, buffer[tuple(at)])

    def vector(self, read: Read, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """A vector along the last index; elements at and past ``limit`` are not touched and give zero."""
        buffer, at = self.place(read, **index)
        return self._widened(read, self.vectors.load(buffer, at[:-1], at[-1], limit))

    def _widened(self, read: Read, value: TirExpr) -> TirExpr:
        """What was loaded from a tensor as float32."""
        dtype = self.task.workload.tensors[read.tensor].dtype
        return value if dtype == DTYPE else bound(loaded(bound(value), dtype))

    def value(self, expr: Ast, instead: TirExpr, along: str, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """An elementwise part in vectors ``along`` an axis, with ``instead`` where it reads what was computed."""
        reader = self._reader({**self.index, **index}, self.lanes, along, limit)
        types = self.task.workload.element_types
        for name in (DOTS, QUOTIENT):
            types = types.with_tensor(name, DTYPE)

        def read(node: Read) -> TirExpr:
            return instead if node.tensor in (DOTS, QUOTIENT) else reader.read(node)

        extent = self.function.extents.__getitem__
        return Evaluator(types, self.lanes, read, reader.axis, extent).value(expr, DTYPE)

    def _reader(self, index: Mapping[str, TirExpr], lanes: int, along: str | None, limit: TirExpr | None) -> Reader:
        return Reader(self.task.workload, self.function, self.function.buffers, index, lanes, along, limit)

    # -- which columns are visible ----------------------------------------------------------------------------------
    def first_column(self, row: TirExpr) -> TirExpr:
        """The first column that the bounds leave visible to a row; those of later rows are no earlier."""
        return self._limit(False, i64(0), tirx.max, row)

    def end_column(self, row: TirExpr) -> TirExpr:
        """The first column past those that the bounds leave visible to a row."""
        return self._limit(True, self.extent["j"], tirx.min, row)

    def _limit(
        self, is_upper: bool, start: TirExpr, combine: Callable[[TirExpr, TirExpr], TirExpr], row: TirExpr
    ) -> TirExpr:
        sizes = {f"extent({name})": value for name, value in self.function.extents.items()}
        values = {**sizes, **self.index, "i": row}
        result = start
        for each in self.chain.mask.bounds:
            if each.is_upper == is_upper:
                result = combine(result, dim_expr(each.limit, values) + i64(int(is_upper)))
        return I.Bind(result)

    @property
    def has_lower_bound(self) -> bool:
        return any(not each.is_upper for each in self.chain.mask.bounds)


def up(value: TirExpr, step: int) -> TirExpr:
    """How many steps hold ``value`` elements."""
    return tirx.floordiv(value + i64(step - 1), i64(step))


def down(value: TirExpr, step: int) -> TirExpr:
    """``value`` rounded down to a multiple."""
    return tirx.floordiv(value, i64(step)) * i64(step)
