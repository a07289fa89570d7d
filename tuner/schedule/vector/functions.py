"""The scalar functions and the reducers of the program notation, by name, on vectors or scalars of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.program.language.dtypes import DTYPES
from tuner.schedule.tir import TirExpr, function, tirx
from tuner.schedule.vector import elementary
from tuner.schedule.vector.arithmetic import bound, calls, like, maximum, minimum
from tuner.schedule.vector.dtypes import element_type
from tuner.schedule.vector.integers import WRAPPING, wrapped

Function = Callable[..., TirExpr]

_FLOAT32: Mapping[str, Function] = {
    "exp": elementary.exp,
    "log": elementary.log,
    "tanh": elementary.tanh,
    "erf": elementary.erf,
    "sigmoid": elementary.sigmoid,
    "sin": elementary.sin,
    "cos": elementary.cos,
}
_OF_THE_C_LIBRARY = frozenset({"exp", "log", "tanh", "erf", "sin", "cos"})


def apply(name: str, *operands: TirExpr) -> TirExpr:
    """Function ``name`` of operands of one dtype (``where``: of a bool first), which are evaluated once.

    float32 has vector code of known error (``elementary``). float64 calls the C library for each lane where there is
    no instruction; integers have ``abs``, ``floor``, ``round``, ``min``, ``max`` and ``where``. The result is an
    expression; bind it before it is used more than once.
    """
    values = [bound(operand) for operand in operands]
    dtype = element_type(values[-1])
    if name in _EVERYWHERE:
        return _EVERYWHERE[name](*values)
    if not dtype.startswith("float"):
        raise ValueError(f"{name} of {dtype} has no code")
    if name in _OF_ANY_FLOAT:
        return _OF_ANY_FLOAT[name](*values)
    return _FLOAT32[name](*values) if dtype == "float32" else _scalar_calls(name, *values)


def _absolute(x: TirExpr) -> TirExpr:
    return x if element_type(x) in ("uint8", "bool") else tirx.abs(x)


def _rounded(x: TirExpr, to: Function) -> TirExpr:
    return to(x) if element_type(x).startswith("float") else x


_EVERYWHERE: Mapping[str, Function] = {
    "abs": _absolute,
    "floor": lambda x: _rounded(x, tirx.floor),
    "round": lambda x: _rounded(x, tirx.nearbyint),
    "min": minimum,
    "max": maximum,
    "where": function("Select"),
}
_OF_ANY_FLOAT: Mapping[str, Function] = {
    "sqrt": function("sqrt"),
    "rsqrt": lambda x: like(1.0, x) / tirx.sqrt(x),
}


def _scalar_calls(name: str, x: TirExpr) -> TirExpr:
    """A call of the C library for each lane."""
    if name == "sigmoid":
        return like(1.0, x) / (like(1.0, x) + _scalar_calls("exp", like(0.0, x) - x))
    if name not in _OF_THE_C_LIBRARY:
        raise ValueError(f"{name} of {element_type(x)} has no code")
    return calls(name, bound(x))


COMBINE: Mapping[str, Callable[[TirExpr, TirExpr], TirExpr]] = {
    "sum": lambda a, b: wrapped("+", a, b) if element_type(a) in WRAPPING else a + b,
    "prod": lambda a, b: wrapped("*", a, b) if element_type(a) in WRAPPING else a * b,
    "max": lambda a, b: maximum(bound(a), bound(b)),
    "min": lambda a, b: minimum(bound(a), bound(b)),
}
"""By reducer. With the accumulated value second, the test for NaN is of the new one, off the chain of dependent
instructions."""


def identity(reducer: str, dtype: str) -> float | int:
    """What a reduction over nothing gives in a tensor of ``dtype``."""
    if reducer in ("sum", "prod"):
        return int(reducer == "prod")
    known = DTYPES[dtype]
    if known.kind == "f":
        return float("-inf") if reducer == "max" else float("inf")
    bits = {"b": 1, "u": known.bits}.get(known.kind, known.bits - 1)
    least: int = -(2**bits) if known.kind == "i" else 0
    return least if reducer == "max" else 2**bits - 1
