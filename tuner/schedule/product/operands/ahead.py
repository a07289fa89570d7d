"""Operands whose axes are grouped, packed before all calls, whatever dims they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.schedule.product.context import by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.match.parts import outer_role
from tuner.schedule.product.product import Left, Place, Right
from tuner.schedule.signature import i64
from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from tuner.schedule.product.context import EmitContext


@dataclass(frozen=True)
class AheadRows(Factors, Left):
    """Rows as ``PackLayout`` packs them: [outer parts and m, k]."""

    is_packed_ahead = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (_outer(context, self.roles) * context.extent["m"] + row,)


@dataclass(frozen=True)
class AheadColumns(Factors, Right):
    """Columns as ``PackLayout`` packs them: [outer parts and panels, k, nr]."""

    is_packed_ahead = True
    lies_along_n = True

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        raise NotImplementedError("the operand is packed")

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]

    def first_panel(self, context: EmitContext) -> TirExpr | None:
        if len(self.roles) == 2:
            return None
        return _outer(context, self.roles) * context.panels


def _outer(context: EmitContext, roles: tuple[str, ...]) -> TirExpr:
    """The flattened index of an operand's outer parts."""
    flat: TirExpr = i64(0)
    values = by_role(context.outer)
    sizes = {outer_role(name): context.parts.size(name) for name in context.outer}
    for role in roles[:-2]:
        flat = flat * sizes[role] + values[role]
    return flat
