"""Dtypes of elements in memory and in registers, and casts between them.

float16 and bfloat16 are computed as float32. A bfloat16 is stored as the bits of a uint16, since TVM's own handling of
it is not among our passes. LLVM converts float16, by an instruction where the target has one and otherwise by a
function that TVM puts into every module.
"""

from __future__ import annotations

from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.rounding import instruction

SHORT_FLOATS = frozenset({"float16", "bfloat16"})
SHORT_INTS = frozenset({"int8", "uint8"})


def stored_type(dtype: str) -> str:
    """What a buffer of ``dtype`` is declared as."""
    return "uint16" if dtype == "bfloat16" else dtype


def register_type(dtype: str) -> str:
    """What an element of ``dtype`` is once loaded."""
    return "float32" if dtype in SHORT_FLOATS else dtype


def vector_type(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def element_type(value: TirExpr) -> str:
    """The dtype of one lane of an expression."""
    return str(value.ty.dtype).partition("x")[0]


def lanes_of(value: TirExpr) -> int:
    return int(value.ty.dtype.lanes)


def constant(number: float, dtype: str, lanes: int) -> TirExpr:
    """``number`` in every lane."""
    is_float = dtype.startswith("float")
    scalar = tirx.FloatImm(dtype, float(number)) if is_float else tirx.IntImm(dtype, int(number))
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def loaded(value: TirExpr, dtype: str) -> TirExpr:
    """What stands in a register for ``value``, read from a buffer of ``dtype``."""
    lanes = lanes_of(value)
    if dtype == "bfloat16":
        bits = tirx.shift_left(tirx.Cast(vector_type("uint32", lanes), value), constant(16, "uint32", lanes))
        return tirx.reinterpret(vector_type("float32", lanes), bits)
    return tirx.Cast(vector_type("float32", lanes), value) if dtype == "float16" else value


def stored(value: TirExpr, dtype: str) -> TirExpr:
    """The opposite of ``loaded``: rounded to nearest, ties to even. ``value`` is used several times: bind it."""
    lanes = lanes_of(value)
    if dtype != "bfloat16":
        return tirx.Cast(vector_type(dtype, lanes), value) if dtype == "float16" else value
    if (rounded := instruction(value)) is not None:
        return rounded
    bits = tirx.reinterpret(vector_type("uint32", lanes), value)
    sixteen, one = constant(16, "uint32", lanes), constant(1, "uint32", lanes)
    odd = tirx.bitwise_and(tirx.shift_right(bits, sixteen), one)
    rounded = tirx.shift_right(bits + constant(0x7FFF, "uint32", lanes) + odd, sixteen)
    quiet = tirx.Select(tirx.isnan(value), constant(0x7FC0, "uint32", lanes), rounded)
    return tirx.Cast(vector_type("uint16", lanes), quiet)


def stored_as(value: TirExpr, dtype: str) -> TirExpr:
    """``value`` of any dtype as a buffer of ``dtype`` holds it: rounded once. It is used several times: bind it."""
    return stored(cast(value, "float32" if dtype in SHORT_FLOATS else dtype), dtype)


def as_bits(value: TirExpr, dtype: str) -> TirExpr:
    """The bits of ``value`` as another dtype of the same size."""
    return value if element_type(value) == dtype else tirx.reinterpret(vector_type(dtype, lanes_of(value)), value)


def cast(value: TirExpr, dtype: str) -> TirExpr:
    """``value`` as an element of ``dtype`` in a register: floats are cut to integers toward zero, as in NumPy.

    A float past the range of an integer gives any integer, as there. ``value`` is used several times: bind it.
    """
    lanes, source, wanted = lanes_of(value), element_type(value), register_type(dtype)
    if dtype in SHORT_FLOATS:
        return loaded(stored(cast(value, "float32"), dtype), dtype)
    if source == wanted:
        return value
    if source == "bool":
        # Not a cast, at which the simplifier's analysis fails.
        return tirx.Select(value, constant(1, wanted, lanes), constant(0, wanted, lanes))
    if source.startswith("float") and wanted in SHORT_INTS:
        # Wraps around, where a direct conversion would be undefined.
        value = tirx.Cast(vector_type("int32", lanes), value)
    return tirx.Cast(vector_type(wanted, lanes), value)
