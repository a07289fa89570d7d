"""Operands and results whose axes are grouped, in tensors that lie so: dims are merged, and nothing is moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.program.expr import Read
from tuner.program.notation import Stage
from tuner.schedule.product.indexing import by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.operand import Left, Place, Result, Right
from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from tuner.schedule.product.context import EmitContext


@dataclass(frozen=True)
class ViewedRows(Factors, Left):
    """Rows of a tensor that lies along k."""

    is_packed_ahead = False
    is_viewed = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        view = context.parts.views[f"{self.tensor} left"]
        return view.buffer, view.outer(by_role(context.outer, m=row))


@dataclass(frozen=True)
class ViewedColumns(Factors, Right):
    """Columns of a tensor whose last dims are k and n, in either order."""

    is_packed_ahead = False
    is_viewed = True

    @property
    def lies_along_n(self) -> bool:  # type: ignore[override]
        return self.roles[-1] == "n"

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        view = context.parts.views[f"{self.tensor} right"]
        return view.buffer, view.outer(by_role(context.outer, k=step, n=step))


@dataclass(frozen=True)
class ViewedResult(Result):
    """Results that are written where they belong, vector by vector."""

    dtype: str
    computed: str
    epilogue: tuple[Stage, ...]

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        view = context.parts.views["out"]
        return view.buffer, view.outer(by_role(context.outer, m=row))

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        view = context.parts.views[read.tensor]
        values = by_role(context.outer, m=row)
        return view.buffer, tuple(values[role] for role in view.roles if role != "n"), "n" in view.roles
