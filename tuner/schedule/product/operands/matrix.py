"""Operands and results that lie as matrices, or in tensors whose dims are merged to such: nothing is moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.program.language.expr import Axis, Read
from tuner.program.language.workload import Workload
from tuner.schedule.layout import PackLayout
from tuner.schedule.product.context import EmitContext, by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.product import Left, Place, Result, Right
from tuner.schedule.tir import TirExpr


@dataclass(frozen=True)
class MatrixRows(Left):
    """``tensor[(b,) m, k]``."""

    tensor: str
    dtype: str
    is_packed_ahead = False

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), row)


@dataclass(frozen=True)
class MatrixColumns(Right):
    """``tensor[(b,) k, n]`` if it lies along n, else ``tensor[(b,) n, k]``; or panels, if packed before all calls."""

    tensor: str
    dtype: str
    lies_along_n: bool
    is_packed_ahead: bool

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), step)

    def layouts(self, workload: Workload, panels: PackLayout) -> Mapping[str, PackLayout]:
        if not self.is_packed_ahead:
            return {}
        dims = tuple((dim.constant or 0,) for dim in workload.tensors[self.tensor].dims)
        return {self.tensor: replace(panels, dims=dims, rows=(1,), steps=(0,)) if self.lies_along_n else panels}

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]


@dataclass(frozen=True)
class MatrixResult(Result):
    """``tensor[(b,) m, n]``; ``axes``: the program's axis of each role."""

    tensor: str
    m: str
    n: str
    batch: str | None = None

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), row)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        index = {self.m: row} | ({self.batch: context.batch} if self.batch else {})
        axes = [axis.name for axis in read.indices if isinstance(axis, Axis)]
        return context.buffers[read.tensor], tuple(index[axis] for axis in axes if axis != self.n), self.n in axes


def _batch(context: EmitContext) -> tuple[TirExpr, ...]:
    return () if context.batch is None else (context.batch,)


@dataclass(frozen=True)
class ViewedRows(Factors, Left):
    """Rows of a tensor that lies along k."""

    is_packed_ahead = False
    is_viewed = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.in_view(f"{self.tensor} left", m=row)


@dataclass(frozen=True)
class ViewedColumns(Factors, Right):
    """Columns of a tensor whose last dims are k and n, in either order."""

    is_packed_ahead = False
    is_viewed = True

    @property
    def lies_along_n(self) -> bool:  # type: ignore[override]
        return self.roles[-1] == "n"

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        return context.in_view(f"{self.tensor} right", k=step, n=step)


@dataclass(frozen=True)
class ViewedResult(Result):
    """Results that are written where they belong, vector by vector."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.in_view("out", m=row)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        view, values = context.parts.views[read.tensor], by_role(context.outer, m=row)
        return view.buffer, tuple(values[role] for role in view.roles if role != "n"), "n" in view.roles
