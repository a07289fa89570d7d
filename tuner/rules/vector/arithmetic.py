"""Operators on vectors or scalars that mean for floats what IEEE 754 and NumPy say. Imports TVM.

TVM's simplifier takes floats for real numbers, and looks through bindings: it makes ``x - x`` zero, ``x != x`` false,
``(x + c) - c`` plain ``x``, all of them wrong for infinities, NaN or rounding. A fence hides from it where a value
comes from; LLVM removes fences, and does not reorder floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.rules.vector.dtypes import cast, constant, element_type, lanes_of, vector_type

Expr = Any
Binary = Callable[[Expr, Expr], Expr]

_BITS = {"float32": "int32", "float64": "int64"}


def fenced(value: Expr) -> Expr:
    """``value``, of which the simplifier knows nothing."""
    dtype, lanes = element_type(value), lanes_of(value)
    if dtype not in _BITS:
        return value
    bits = tirx.reinterpret(vector_type(_BITS[dtype], lanes), value)
    return tirx.reinterpret(vector_type(dtype, lanes), bits)


def bound(value: Expr) -> Expr:
    """A name for ``value``, so that it is computed once; fenced."""
    if element_type(value) != "bool":
        return I.Bind(fenced(value))
    # A name for a vector of bools would make the simplifier's analysis fail.
    byte = I.Bind(cast(value, "uint8"))
    return tirx.NE(byte, like(0, byte))


def like(number: float, value: Expr) -> Expr:
    """``number`` in every lane, of the dtype of ``value``."""
    return constant(number, element_type(value), lanes_of(value))


def multiply_add(a: Expr, b: Expr, c: Expr) -> Expr:
    """``a * b + c`` of floats, rounded once where the target has an instruction for that."""
    dtype = vector_type(element_type(a), lanes_of(a))
    return tirx.call_llvm_intrin(dtype, "llvm.fmuladd", a, b, c)


def minimum(a: Expr, b: Expr) -> Expr:
    """NaN if either is, as NumPy has it. Operands are used several times: bind them."""
    return _extreme(a, b, operator.lt, tirx.min)


def maximum(a: Expr, b: Expr) -> Expr:
    """NaN if either is, as NumPy has it. Operands are used several times: bind them."""
    return _extreme(a, b, operator.gt, tirx.max)


def _extreme(a: Expr, b: Expr, better: Binary, of_ints: Binary) -> Expr:
    if element_type(a) not in _BITS:
        return of_ints(a, b)
    # The instruction gives b if either is NaN.
    return tirx.Select(tirx.isnan(a), a, tirx.Select(better(a, b), a, b))


def _floor_divide(a: Expr, b: Expr) -> Expr:
    return tirx.floor(a / b) if element_type(a) in _BITS else tirx.floordiv(a, b)


def _differ(a: Expr, b: Expr) -> Expr:
    if element_type(a) not in _BITS:
        return tirx.NE(a, b)
    # Said this way because LLVM is handed a comparison that is false of NaN.
    return tirx.Or(tirx.Or(a < b, b < a), tirx.Or(tirx.isnan(a), tirx.isnan(b)))


OPERATORS: Mapping[str, Binary] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": _floor_divide,
    "%": tirx.floormod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": tirx.EQ,
    "!=": _differ,
    "&": tirx.bitwise_and,
    "|": tirx.bitwise_or,
    "^": tirx.bitwise_xor,
    "<<": tirx.shift_left,
    ">>": tirx.shift_right,
}
"""Operators by their sign. Both operands have one dtype; ``/`` is of floats, ``%`` and shifts of integers; ``//``
rounds down; comparisons give bool."""


def combined(sign: str, a: Expr, b: Expr) -> Expr:
    """``a`` and ``b`` through the operator of that sign."""
    if element_type(a) == "bool" and sign in ("&", "|"):
        return tirx.And(a, b) if sign == "&" else tirx.Or(a, b)
    return OPERATORS[sign](a, fenced(b))
