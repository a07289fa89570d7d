"""Factors of rows and columns, and sums of blocks, of one element or of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, lanes_of, vector_type

EXPONENT = 23
"""The place of the exponent in the bits of a float32."""
LEAST, LARGEST, INFINITE = 1, 253, 255
"""Exponents of factors, and that of what is no finite number."""
ALL_BUT_SIGN, NAN = 0x7FFFFFFF, 0x7FC00000


@dataclass(frozen=True)
class Factors:
    """What some elements are multiplied by: ``value``, a power of two near the largest of them, 0 if all are zero, NaN
    if one is no finite number; ``inverse``: of the power of two; ``is_finite``."""

    value: TirExpr
    inverse: TirExpr
    is_finite: TirExpr


def magnitude(value: TirExpr) -> TirExpr:
    """The bits of the magnitude of a vector: they are in the order of the numbers, infinity and NaN at the end."""
    lanes = lanes_of(value)
    bits = tirx.reinterpret(vector_type("int32", lanes), value)
    return bound(bits & constant(ALL_BUT_SIGN, "int32", lanes))


def factors_of(most: TirExpr, lanes: int) -> Factors:
    """``most``: the bits of the largest magnitude, of one row or of each lane."""

    def integer(number: int) -> TirExpr:
        return constant(number, "int32", lanes)

    def as_float(bits: TirExpr) -> TirExpr:
        return bound(tirx.reinterpret(vector_type("float32", lanes), bound(bits)))

    exponent = bound(tirx.shift_right(most, integer(EXPONENT)))
    own = bound(tirx.max(tirx.min(exponent, integer(LARGEST)), integer(LEAST)))
    factor = tirx.Select(tirx.EQ(most, integer(0)), integer(0), tirx.shift_left(own, integer(EXPONENT)))
    factor = tirx.Select(tirx.EQ(exponent, integer(INFINITE)), integer(NAN), factor)
    inverse = tirx.shift_left(integer(LEAST + LARGEST) - own, integer(EXPONENT))
    return Factors(as_float(factor), as_float(inverse), bound(exponent < integer(INFINITE)))


def signed_sum(signs: Sequence[int], values: Sequence[TirExpr]) -> TirExpr:
    """Terms in order, a positive one first."""
    terms = sorted((term for term in zip(signs, values, strict=True) if term[0]), key=lambda term: term[0] < 0)
    (_, total), *others = terms
    for sign, value in others:
        total = bound(total + value if sign > 0 else total - value)
    return total
