"""Operators on vectors or scalars that mean for floats what IEEE 754 and NumPy say.

TVM's simplifier takes floats for real numbers, and looks through bindings: it makes ``x - x`` zero, ``x != x`` false,
``(x + c) - c`` plain ``x``, all of them wrong for infinities, NaN or rounding. A fence hides from it where a value
comes from; LLVM removes fences, and does not reorder floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from tuner.schedule.tir import I, TirExpr, function, tirx, tvm
from tuner.schedule.vector.dtypes import cast, constant, element_type, lanes_of, vector_type

Binary = Callable[[TirExpr, TirExpr], TirExpr]

SIGNALING_NAN, QUIET_NAN = 1, 2
"""Classes of floats, as LLVM numbers them."""

_BITS = {"float32": "int32", "float64": "int64"}


def fenced(value: TirExpr) -> TirExpr:
    """``value``, of which the simplifier knows nothing."""
    dtype, lanes = element_type(value), lanes_of(value)
    if dtype not in _BITS:
        return value
    bits = tirx.reinterpret(vector_type(_BITS[dtype], lanes), value)
    return tirx.reinterpret(vector_type(dtype, lanes), bits)


def bound(value: TirExpr) -> TirExpr:
    """``value``, computed once where this is called: it is kept in a slot on the stack, which LLVM makes a register.

    Not a binding: TVM puts what a name is bound to in the place of the name over and over, and a chain of values each
    of which is used twice would take time exponential in its length.
    """
    if element_type(value) == "bool":
        byte = bound(cast(value, "uint8"))
        return tirx.NE(byte, like(0, byte))
    slot, place = _slot(value)
    return slot[place]


def _slot(value: TirExpr) -> tuple[TirExpr, TirExpr]:
    """A buffer that holds ``value``, and the index of all of it."""
    lanes = lanes_of(value)
    slot, place = I.alloc_buffer((lanes,), element_type(value)), tirx.Ramp(0, 1, lanes) if lanes > 1 else 0
    I.buffer_store(slot, value, [place])
    return slot, place


def replaced(value: TirExpr, where: TirExpr, other: Callable[[], TirExpr]) -> TirExpr:
    """``value``, but what ``other`` gives in the lanes of ``where``; its code is passed over where there is none."""
    (slot, place), where = _slot(value), bound(where)
    some = tirx.call_llvm_intrin("bool", "llvm.vector.reduce.or", where) if lanes_of(value) > 1 else where
    rarely = tirx.call_llvm_intrin("bool", "llvm.expect", some, tirx.IntImm("bool", 0))
    with I.If(rarely), I.Then():
        I.buffer_store(slot, tirx.Select(where, bound(other()), slot[place]), [place])
    return slot[place]


def calls(name: str, x: TirExpr) -> TirExpr:
    """A function of the C library for each lane of ``x``, which gives what it takes. ``x`` is used several times: bind
    it."""
    lanes, dtype = lanes_of(x), element_type(x)
    if lanes == 1:
        return tirx.call_pure_extern(dtype, name, x)
    places = [tirx.IntImm("int32", lane) for lane in range(lanes)]
    return tirx.Shuffle([tirx.call_pure_extern(dtype, name, tirx.Shuffle([x], [lane])) for lane in places], places)


def named(value: TirExpr) -> TirExpr:
    """``value`` by a name. Vectors of bools are kept in a slot: the simplifier's analysis of what they are bound to
    fails."""
    return bound(value) if element_type(value) == "bool" else I.Bind(value)


def bound_unless_known(value: TirExpr) -> TirExpr:
    """The same, but a number stays one, which the compiler knows."""
    return value if isinstance(value, tirx.IntImm) else bound(value)


def like(number: float, value: TirExpr) -> TirExpr:
    """``number`` in every lane, of the dtype of ``value``."""
    return constant(number, element_type(value), lanes_of(value))


def multiply_add(a: TirExpr, b: TirExpr, c: TirExpr) -> TirExpr:
    """``a * b + c`` of floats, rounded once where the target has an instruction for that."""
    dtype = vector_type(element_type(a), lanes_of(a))
    return tirx.call_llvm_intrin(dtype, "llvm.fmuladd", a, b, c)


def is_nan(value: TirExpr) -> TirExpr:
    """Whether each lane of floats is NaN. Opaque to the simplifier, which takes long over ``isnan`` and comparisons."""
    dtype = vector_type("bool", lanes_of(value))
    return tirx.call_llvm_intrin(dtype, "llvm.is.fpclass", value, tirx.IntImm("int32", SIGNALING_NAN | QUIET_NAN))


def minimum(a: TirExpr, b: TirExpr) -> TirExpr:
    """NaN if either is, as NumPy has it. Operands are used several times: bind them."""
    return _extreme(a, b, tirx.min)


def maximum(a: TirExpr, b: TirExpr) -> TirExpr:
    """NaN if either is, as NumPy has it. Operands are used several times: bind them."""
    return _extreme(a, b, tirx.max)


def _extreme(a: TirExpr, b: TirExpr, better: Binary) -> TirExpr:
    if element_type(a) == "bool":
        return tirx.Or(a, b) if better is tirx.max else tirx.And(a, b)
    if element_type(a) not in _BITS:
        return better(a, b)
    # The instruction gives b if either is NaN; then all bits are set if a is.
    dtype, lanes = _BITS[element_type(a)], lanes_of(a)
    bits = tirx.reinterpret(vector_type(dtype, lanes), better(a, b))
    of_nan = tirx.Select(is_nan(a), constant(-1, dtype, lanes), constant(0, dtype, lanes))
    return tirx.reinterpret(vector_type(element_type(a), lanes), tirx.bitwise_or(bits, of_nan))


def _floor_divide(a: TirExpr, b: TirExpr) -> TirExpr:
    return tirx.floor(a / b) if element_type(a) in _BITS else tirx.floordiv(a, b)


def _differ(a: TirExpr, b: TirExpr) -> TirExpr:
    if element_type(a) not in _BITS:
        return tirx.NE(a, b)
    # Said this way because LLVM is handed a comparison that is false of NaN.
    return tirx.Or(tirx.Or(a < b, b < a), tirx.Or(is_nan(a), is_nan(b)))


OPERATORS: Mapping[str, Binary] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": _floor_divide,
    "%": function("floormod"),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": function("EQ"),
    "!=": _differ,
    "&": function("bitwise_and"),
    "|": function("bitwise_or"),
    "^": function("bitwise_xor"),
    "<<": function("shift_left"),
    ">>": function("shift_right"),
}
"""Operators by their sign. Both operands have one dtype; ``/`` is of floats, ``%`` and shifts of integers; ``//``
rounds down; comparisons give bool."""


def shifted(sign: str, a: TirExpr, b: TirExpr) -> TirExpr:
    """``a << b`` or ``a >> b`` for any ``b``, as NumPy has it: past the number of bits nothing but the sign is left.
    LLVM takes such a shift for whatever suits it. Operands are used several times: bind them."""
    last = 8 * int(tvm.DataType(element_type(a)).itemsize) - 1
    inside = tirx.bitwise_and(b, like(~last, b))
    is_inside = tirx.EQ(inside, like(0, b))
    past = like(0, a) if sign == "<<" else tirx.shift_right(a, like(last, a))
    return tirx.Select(is_inside, OPERATORS[sign](a, tirx.bitwise_and(b, like(last, b))), past)


def combined(sign: str, a: TirExpr, b: TirExpr) -> TirExpr:
    """``a`` and ``b`` through the operator of that sign."""
    if element_type(a) == "bool" and sign in ("&", "|"):
        return tirx.And(a, b) if sign == "&" else tirx.Or(a, b)
    return OPERATORS[sign](a, fenced(b))
