"""Sizes of PyTorch's symbolic shapes as dims over shape variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add, mul
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.language.dims import ALLOWED, DimExpr

_DIVISIONS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")


def dim_of(size: Any, known: Mapping[str, int] | None = None) -> DimExpr:
    """``size``, an int or a SymInt, over the symbols as shape variables; those that are ``known`` as numbers.

    Raises InvalidInput for what no dim can say (a maximum of two sizes, a size that was rounded up).
    """
    if isinstance(size, int) and not hasattr(size, "node"):
        return DimExpr.of(size)
    expr = size.node.expr
    return _converted(
        expr.subs({each: known[str(each)] for each in expr.free_symbols if str(each) in known}) if known else expr
    )


def _converted(expr: Any) -> DimExpr:
    """The dim of a SymPy expression."""
    kind = type(expr).__name__
    if expr.is_Integer:
        return DimExpr.of(int(expr))
    if expr.is_Symbol:
        return DimExpr.var(str(expr))
    if expr.is_Add or expr.is_Mul:
        return reduce(add if expr.is_Add else mul, (_converted(each) for each in expr.args))
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        return reduce(mul, [_converted(expr.base)] * int(expr.exp))
    if kind in (*_DIVISIONS, *_REMAINDERS) and expr.args[1].is_Integer:
        dim, divisor = _converted(expr.args[0]), int(expr.args[1])
        return dim // divisor if kind in _DIVISIONS else dim % divisor
    if kind in _DIVISIONS and (quotient := (expr.args[0] / expr.args[1]).cancel()).is_polynomial():
        # Nothing is left over: height and width of a square image are one symbol.
        return _converted(quotient)
    raise InvalidInput("", f"the size {expr} is no dim", f"allowed: {ALLOWED}")
