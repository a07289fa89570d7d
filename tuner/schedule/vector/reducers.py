"""Reducers of the program notation: how two values combine, and what a reduction over nothing gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.schedule.tir import TirExpr
from tuner.schedule.vector.arithmetic import bound, maximum, minimum

COMBINE: Mapping[str, Callable[[TirExpr, TirExpr], TirExpr]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: maximum(bound(a), bound(b)),
    "min": lambda a, b: minimum(bound(a), bound(b)),
}
"""By reducer. With the accumulated value second, the test for NaN is of the new one, off the chain of dependent
instructions."""


def identity(reducer: str, dtype: str) -> float | int:
    """What a reduction over nothing gives."""
    if reducer in ("sum", "prod"):
        return int(reducer == "prod")
    if dtype.startswith("float"):
        return float("-inf") if reducer == "max" else float("inf")
    if dtype == "bool":
        return int(reducer == "min")
    limit: int = 2**63 if dtype == "int64" else 2**31
    return -limit if reducer == "max" else limit - 1
