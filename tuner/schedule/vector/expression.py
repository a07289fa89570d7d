"""Expressions of a program as vector code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tuner.program.language import expr as ast
from tuner.program.language.dtypes import DTYPES, promoted
from tuner.program.language.indices import shifts_inside
from tuner.program.language.shapes import ElementTypes
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.arithmetic import OPERATORS, bound, combined, fenced, like, shifted
from tuner.schedule.vector.dtypes import cast, constant, element_type, lanes_of
from tuner.schedule.vector.functions import apply
from tuner.schedule.vector.integers import leaves_its_type, wrapped

_SHIFTS = frozenset({"<<", ">>"})
_SUMS = ("+", "-")
_UNFENCED = frozenset({"+", "*", "&", "|", "<<", ">>", "%"})


@dataclass(frozen=True)
class Evaluator:
    """Writes the value of an expression in ``lanes`` lanes, of the dtype that ``types`` infers for it.

    ``read`` gives an element (or a vector of them) of a tensor as it is in a register, ``axis`` the value of an axis
    and ``extent`` an extent, both as int64. What they give is used as often as the expression names it: bind it.
    """

    types: ElementTypes
    lanes: int
    read: Callable[[ast.Read], TirExpr]
    axis: Callable[[str], TirExpr]
    extent: Callable[[str], TirExpr]

    def value(self, expr: ast.Expr, dtype: str | None = None) -> TirExpr:
        """The expression's value, cast to ``dtype`` if that is given (a type of computation, as float32 or int32)."""
        own = self.types.type_of(expr)
        wanted = dtype or own
        if isinstance(expr, ast.Const):
            return constant(expr.value, wanted, self.lanes)
        value = self._wide(self._value(expr, own))
        return value if element_type(value) == wanted else cast(bound(value), wanted)

    def _value(self, expr: ast.Expr, dtype: str) -> TirExpr:
        match expr:
            case ast.Axis(name=name):
                return self.axis(name)
            case ast.Extent(name=name):
                return self.extent(name)
            case ast.Read():
                return self.read(expr)
            case ast.Cast(operand=operand, dtype=narrow):
                return cast(bound(self.value(operand)), narrow)
            case ast.Neg(operand=operand):
                value = self.value(operand, dtype)
                # 0 - x would make 0 of -0.
                return value * like(-1, value) if dtype.startswith("float") else self._negated(expr, value)
            case ast.Binary():
                return self._binary(expr, dtype)
            case ast.Call():
                return self._call(expr, dtype)
            case _:
                raise TypeError(f"{type(expr).__name__} has no code")

    def _binary(self, expr: ast.Binary, dtype: str) -> TirExpr:
        operands = (expr.left, expr.right)
        if expr.operator in ast.COMPARISONS:
            dtype = self._common(operands)
        left, right = (self.value(operand, dtype) for operand in operands)
        if dtype == "bool":
            return combined(expr.operator, left, right)
        if leaves_its_type(expr, self.types):
            return wrapped(expr.operator, left, right)
        if expr.operator == "<<" and _is_known(expr.left):
            # Of numbers that it knows TVM computes the result itself, and fails where that has no room.
            left = bound(left)
        if expr.operator in _SHIFTS and not shifts_inside(expr.right, DTYPES[dtype].bits):
            return shifted(expr.operator, bound(left), bound(right))
        # The simplifier takes floats for real numbers: what could cancel is fenced off (see arithmetic.py), and so is
        # what it may know to be zero, times which NaN is no zero.
        if expr.operator in ("*", "/"):
            left = fenced(left) if _may_be_zero(expr.left) else left
            right = fenced(right) if _may_be_zero(expr.right) else right
        if expr.operator in _UNFENCED or isinstance(expr.right, ast.Const):
            return OPERATORS[expr.operator](fenced(left) if _is_of_sum(expr) else left, right)
        return combined(expr.operator, left, right)

    def _call(self, expr: ast.Call, dtype: str) -> TirExpr:
        if expr.function == "where":
            condition, *branches = expr.args
            chosen = (self.value(branch, dtype) for branch in branches)
            return tirx.Select(self._condition(condition), *chosen)
        if leaves_its_type(expr, self.types):
            value = bound(self.value(expr.args[0], dtype))
            return tirx.Select(value < like(0, value), self._negated(expr, value), value)
        return apply(expr.function, *(self.value(arg, dtype) for arg in expr.args))

    def _negated(self, expr: ast.Expr, value: TirExpr) -> TirExpr:
        """An integer with the other sign: that of the least number is itself."""
        zero = like(0, value)
        return wrapped("-", zero, value) if leaves_its_type(expr, self.types) else zero - value

    def _condition(self, expr: ast.Expr) -> TirExpr:
        value = self.value(expr)
        return value if element_type(value) == "bool" else value != like(0, value)

    def _common(self, operands: tuple[ast.Expr, ...]) -> str:
        """What a comparison compares in."""
        return promoted("int32" if (own := self.types.type_of(operand)) == "bool" else own for operand in operands)

    def _wide(self, value: TirExpr) -> TirExpr:
        return tirx.Broadcast(value, self.lanes) if lanes_of(value) == 1 < self.lanes else value


def _is_of_sum(expr: ast.Binary) -> bool:
    """Whether a number is added to a sum: (x + 1) - 1 would be x, but sums are rounded, and some are there to tell by
    how much."""
    is_number = isinstance(expr.right, ast.Const) and expr.operator in _SUMS
    return is_number and isinstance(expr.left, ast.Binary) and expr.left.operator in _SUMS


def _may_be_zero(expr: ast.Expr) -> bool:
    """Whether the simplifier may find a factor to be zero: it knows constants, and axes in loops of one turn."""
    return _is_known(expr) and not (isinstance(expr, ast.Const) and expr.value)


def _is_known(expr: ast.Expr) -> bool:
    """Whether no element of a tensor decides the value."""
    return not any(isinstance(node, ast.Read) for node in ast.walk(expr))
