"""Expressions that are nothing but four bits of a byte as a number, found by what they compute. No compiler needed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.arrays import NUMPY
from tuner.program.expr import Axis, Binary, Call, Cast, Const, Expr, Neg, Read, axes_of, children, reads, rebuild, walk

Numbers = NDArray[Any]
CODES = 8
"""Four-bit numbers in a word of 32 bits."""
SIGN = 8
"""The bit of four that two's complement takes for the sign."""

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "&": operator.and_, "|": operator.or_, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"where": np.where, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Code:
    """``expr`` is ``(four bits of tensor[n, k // 2] ^ flipped) + offset``: the lower half of the byte where k is even,
    the upper one where it is odd; the other way round if ``high_first``."""

    expr: Expr
    tensor: str
    high_first: bool
    flipped: int
    offset: int


def code_in(expr: Expr, n: str, k: str, dtypes: Mapping[str, str]) -> Code | None:
    """The largest part of ``expr`` that is such a number; ``dtypes`` by tensor."""
    return next(filter(None, (_code(node, n, k, dtypes) for node in walk(expr))), None)


def _code(expr: Expr, n: str, k: str, dtypes: Mapping[str, str]) -> Code | None:
    found = reads(expr)
    place = (Axis(n), Binary("//", Axis(k), Const(2)))
    if not found or any(read.tensor != found[0].tensor or read.indices != place for read in found):
        return None
    tensor = found[0].tensor
    if dtypes[tensor] not in ("uint8", "int8") or not _asks_parity_alone(expr, k):
        return None
    stored = np.arange(256, dtype=np.uint8).view(NUMPY[dtypes[tensor]]).astype(np.int64)
    bits = np.arange(256), np.arange(256) >> 4
    with np.errstate(all="ignore"):
        values = [_value(expr, stored, parity) for parity in (0, 1)]
    if any(value is None or not np.isfinite(value).all() for value in values):
        return None
    for high_first in (False, True):
        halves = [half & 15 for half in (reversed(bits) if high_first else bits)]
        for flipped in (0, SIGN):
            offset = float(values[0][0]) - (int(halves[0][0]) ^ flipped)
            if offset == int(offset) and all(
                np.array_equal(value, (half ^ flipped) + offset) for value, half in zip(values, halves, strict=True)
            ):
                return Code(expr, tensor, high_first, flipped, int(offset))
    return None


def outside(weight: Expr, code: Code | None) -> list[Expr]:
    """The nodes of the weight outside its code and outside of indices."""
    if code is not None:
        weight = rebuild(weight, lambda node: Const(0) if node == code.expr else node)
    inside = {id(node) for read in reads(weight) for index in read.indices for node in walk(index)}
    return [node for node in walk(weight) if id(node) not in inside]


def _asks_parity_alone(expr: Expr, k: str) -> bool:
    """Whether the value of k does not matter beyond ``k % 2``."""
    if expr == Binary("%", Axis(k), Const(2)) or isinstance(expr, Read):
        return True
    if not children(expr):
        return not axes_of(expr)
    return all(_asks_parity_alone(child, k) for child in children(expr))


def _value(expr: Expr, stored: Numbers, parity: int) -> Any:
    """By byte, what an expression of it is; None for one that is not computed here."""
    match expr:
        case Const(value=value):
            return np.full(stored.shape, value)
        case Read():
            return stored
        case Binary(operator="%", left=Axis()):
            return np.full(stored.shape, parity)
        case Binary(operator=name):
            function: Callable[..., Any] = _OPERATORS[name]
        case Neg():
            function = operator.neg
        case Call(function=name) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
        case Cast(dtype=dtype) if dtype in NUMPY:
            function = lambda value: value.astype(NUMPY[dtype])  # noqa: E731
        case _:
            return None
    operands = [_value(child, stored, parity) for child in children(expr)]
    if any(operand is None for operand in operands):
        return None
    # Of bytes and small numbers, so that int64 and float64 hold what int32 and float32 do.
    return _wide(function(*operands))


def _wide(value: Numbers) -> Numbers:
    return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)
