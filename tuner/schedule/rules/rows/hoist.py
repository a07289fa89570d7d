"""What is the same along a row is computed once for the row. No compiler needed.

A division by such a value becomes a multiplication, several times as fast. The reciprocal is taken of a divisor scaled
by a power of two into the middle of the range, so that neither overflows: within 1.5 units in the last place.
"""

from __future__ import annotations

from dataclasses import replace

from tuner.program.expr import Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read, walk
from tuner.program.notation import Stage
from tuner.program.shapes import ElementTypes
from tuner.schedule.rules.rows.frame import Frame

FAR = 2.0**60
"""Divisors below its reciprocal and above it are scaled."""


def hoisted(frame: Frame, types: ElementTypes) -> tuple[Frame, ElementTypes]:
    """The frame with further stages over rows, each before its first reader, and the dtypes of all tensors."""
    hoist = _Hoist(frame, types)
    stages: list[Stage] = []
    for stage in frame.stages:
        is_along = stage.reducer or stage.axes == frame.axes
        body = hoist.change(stage.body) if is_along else stage.body
        stages += [*hoist.taken(), replace(stage, body=body)]
    return replace(frame, stages=tuple(stages)), hoist.types


class _Hoist:
    def __init__(self, frame: Frame, types: ElementTypes) -> None:
        self.types = types
        self._rows, self._columns = frame.rows, frame.columns
        self._along = {stage.tensor for stage in frame.stages if stage.axes == frame.axes}
        self._reads: dict[Expr, Read] = {}
        self._new: list[Stage] = []

    def taken(self) -> list[Stage]:
        """The new stages since the last call."""
        new, self._new = self._new, []
        return new

    def change(self, expr: Expr) -> Expr:
        """The expression with its parts over rows alone as reads of new stages."""
        if self._is_of_row(expr):
            is_plain = isinstance(expr, Const | Axis | Extent | Read)
            return expr if is_plain or self.types.type_of(expr) == "bool" else self._stage(expr)
        match expr:
            case Binary(operator="/", left=left, right=right) if self._is_of_row(right):
                return self._quotient(self.change(left), right, self.types.type_of(expr))
            case Binary(left=left, right=right):
                return replace(expr, left=self.change(left), right=self.change(right))
            case Neg(operand=operand) | Cast(operand=operand):
                return replace(expr, operand=self.change(operand))
            case Call(args=args):
                return replace(expr, args=tuple(map(self.change, args)))
            case _:
                return expr

    def _quotient(self, left: Expr, divisor: Expr, dtype: str) -> Expr:
        value = self._stage(Cast(divisor, dtype))
        size = Call("abs", (value,))
        small, large = Binary("<", size, Const(1 / FAR)), Binary(">", size, Const(FAR))
        scale = self._stage(Call("where", (small, Const(FAR), Call("where", (large, Const(1 / FAR), Const(1.0))))))
        reciprocal = self._stage(Binary("/", Const(1.0), Binary("*", value, scale)))
        return Binary("*", Binary("*", left, reciprocal), scale)

    def _stage(self, expr: Expr) -> Expr:
        """A read of a stage over rows that computes ``expr``."""
        if expr not in self._reads:
            name = f"row.{len(self._reads)}"
            self.types = self.types.with_tensor(name, self.types.type_of(expr))
            self._new.append(Stage(name, self._rows, expr))
            self._reads[expr] = Read(name, tuple(map(Axis, self._rows)))
        return self._reads[expr]

    def _is_of_row(self, expr: Expr) -> bool:
        return not any(
            (isinstance(node, Axis) and node.name in self._columns)
            or (isinstance(node, Read) and node.tensor in self._along)
            for node in walk(expr)
        )
