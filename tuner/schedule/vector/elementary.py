"""Elementary functions of float32 vectors: LLVM would call the C library for each lane.

The errors are the largest ones beside the exact value, with and without fused multiply-adds; denormal results but
those of exp are within two units. Polynomials and rational functions are minimax fits. Infinities
and NaN give what NumPy gives.

=========  ===========================================
exp        1e-7 relative; inf above 88.72, 0 below -86.98
log        1.5e-7 relative
tanh       3.5e-7 relative
sigmoid    1.5e-7 relative; 0 below -88.72
erf        4e-7 relative
sin, cos   1e-7 absolute
=========  ===========================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tuner.program.target import Hardware
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, calls, like, multiply_add, replaced
from tuner.schedule.vector.dtypes import constant, lanes_of, vector_type

_is_fusing: ContextVar[bool] = ContextVar("is_fusing", default=False)


@contextmanager
def fusing(hardware: Hardware) -> Iterator[None]:
    """What is written inside is for ``hardware``: where it has fused multiply-adds, a multiplication and an addition
    round once (``arithmetic.multiply_add``)."""
    token = _is_fusing.set(not {"fma", "asimd"}.isdisjoint(hardware.features))
    try:
        yield
    finally:
        _is_fusing.reset(token)


LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860677e-6
"""Their sum is log(2); multiples of the first up to 2^10 are exact."""
MIN_NORMAL = 2.0**-126
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963705062866, -4.371138828673793e-08
"""Their sum is pi / 2."""

# 2 * exp(r) = 2 + 2 * r + r^2 * P(r) for |r| <= log(2) / 2.
_EXP = (0.9999998807907104, 0.3333304226398468, 0.08333677798509598, 0.016737421974539757, 0.0027629232499748468)
# log(1 + f) = f - f^2 / 2 + f^3 * P(f) for |f| <= 1/3.
_LOG = (0.33333266, -0.25004238, 0.2000792, -0.16472325, 0.14042306, -0.15122198, 0.13820256)
# tanh(x) = x * P(x^2) / Q(x^2) for |x| <= 9.02.
_TANH_P = (9.99999979e-01, 1.33797140e-01, 3.49402981e-03, 2.05834039e-05, 1.33189680e-08)
_TANH_Q = (1.0, 4.67130292e-01, 2.58710552e-02, 3.28308509e-04, 7.76197610e-07)
# erf(x) = x * P(x^2) / Q(x^2) for |x| <= 3.95.
_ERF_P = (1.12837914e00, 1.91549888e-01, 5.28753796e-02, 3.80814062e-03, 2.84686840e-04, 2.02590597e-06)
_ERF_Q = (1.0, 5.03089344e-01, 1.14559439e-01, 1.50550478e-02, 1.17071991e-03, 3.78317327e-05)
# sin(r) = r + r^3 * P(r^2), cos(r) = 1 - r^2 / 2 + r^4 * Q(r^2) for |r| <= pi / 4.
_SIN = (-0.16666655242443085, 0.008332154713571072, -0.00019514454470481724)
_COS = (0.04166664555668831, -0.0013887359527871013, 2.4437533284071833e-05)


def exp(x: TirExpr) -> TirExpr:
    """``2 * exp(r)`` times 2^(n - 1) with ``n`` an integer and ``|r| <= log(2) / 2``.

    The factor is the bits of a float; that of the largest results, 2^127, is one, and where 0 is in its place the
    result is 0. Denormal results would take a fifth more time.
    """
    # In this order NaN stays.
    x = bound(tirx.max(like(-87.5, x), tirx.min(like(89.0, x), x)))
    # Adding 3 * 2^22 rounds to an integer and leaves it in the low bits, with n - 1 biased as an exponent is.
    shift = like(1.5 * 2.0**23 + 126.0, x)
    shifted = bound(multiply_add(x, like(math.log2(math.e), x), shift))
    n = bound(shifted - shift)
    r = bound(_minus_multiple(_minus_multiple(x, n, LN2_HIGH), n, LN2_LOW))
    square = bound(r * r)
    low, high = (multiply_add(like(odd, x), r, like(even, x)) for even, odd in (_EXP[:2], _EXP[2:4]))
    series = multiply_add(square, multiply_add(like(_EXP[4], x), square, high), low)
    series = multiply_add(square, series, r + r) + like(2.0, x)
    return series * _float(tirx.shift_left(_bits(shifted), _integer(23, x)))


def log(x: TirExpr) -> TirExpr:
    """n * log(2) + log(1 + f) with ``n`` an integer and ``|f| <= 1/3``."""
    is_small = x < like(MIN_NORMAL, x)
    scaled = tirx.Select(is_small, x * like(2.0**23, x), x)
    bits = bound(_signed_bits(scaled))
    n = bound(tirx.shift_right(bits - _signed(_TWO_THIRDS, x), _signed(23, x)))
    f = bound(_float(bits - tirx.shift_left(n, _signed(23, x))) - like(1.0, x))
    n = tirx.Cast(vector_type("float32", lanes_of(x)), n)
    n = bound(n - tirx.Select(is_small, like(23.0, x), like(0.0, x)))
    rest = multiply_add(f, polynomial(f, _LOG), like(-0.5, x))
    rest = multiply_add(bound(f * f), rest, n * like(LN2_LOW, x))
    value = multiply_add(n, like(LN2_HIGH, x), f + bound(rest))
    value = tirx.Select(x < like(math.inf, x), value, x)
    at_most_zero = tirx.Select(tirx.EQ(x, like(0.0, x)), like(-math.inf, x), like(math.nan, x))
    return tirx.Select(x > like(0.0, x), value, at_most_zero)


def tanh(x: TirExpr) -> TirExpr:
    return _odd_rational(x, _TANH_P, _TANH_Q, 9.02)


def erf(x: TirExpr) -> TirExpr:
    return _odd_rational(x, _ERF_P, _ERF_Q, 3.93)


def sigmoid(x: TirExpr) -> TirExpr:
    """1 / (1 + exp(-x))."""
    return like(1.0, x) / (like(1.0, x) + exp(like(0.0, x) - x))


def sin(x: TirExpr) -> TirExpr:
    return _wave(x, 0)


def cos(x: TirExpr) -> TirExpr:
    return _wave(x, 1)


def polynomial(x: TirExpr, coefficients: Sequence[float]) -> TirExpr:
    """``coefficients[i]`` times ``x`` to the power of ``i``, by Horner's rule. ``x`` is used several times: bind it."""
    value = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = multiply_add(value, x, like(coefficient, x))
    return value


def _odd_rational(x: TirExpr, above: Sequence[float], below: Sequence[float], most: float) -> TirExpr:
    """``x * P(x^2) / Q(x^2)``, and 1 with the sign of ``x`` past ``most``."""
    square = bound(x * x)
    value = x * polynomial(square, above) / polynomial(square, below)
    one = tirx.Select(x < like(0.0, x), like(-1.0, x), like(1.0, x))
    return tirx.Select(square > like(most * most, x), one, value)


def _wave(x: TirExpr, quarters: int) -> TirExpr:
    """sin(x + quarters * pi / 2): less the nearest multiple of pi / 2, then by the quarter.

    The C library's for a vector with a lane for which that is not exact enough: elsewhere a comparison and a jump.
    """
    nearest, r, most = _turned(x) if _is_fusing.get() else _turned_in_float64(x)
    quarter = bound(nearest + _integer(quarters, x))
    square = bound(r * r)
    sine = multiply_add(bound(square * r), polynomial(square, _SIN), r)
    inner = multiply_add(square, polynomial(square, _COS), like(-0.5, x))
    cosine = multiply_add(square, inner, like(1.0, x))
    is_odd = tirx.NE(tirx.bitwise_and(quarter, _integer(1, x)), _integer(0, x))
    sign = tirx.shift_left(tirx.bitwise_and(quarter, _integer(2, x)), _integer(30, x))
    value = _float(tirx.bitwise_xor(_bits(tirx.Select(is_odd, cosine, sine)), sign))
    room = multiply_add(x, x * like(-1.0, x), like(most**2, x))
    return replaced(value, _signed_bits(room) < _signed(0, x), lambda: calls(_WAVES[quarters], x))


def _turned(x: TirExpr) -> tuple[TirExpr, TirExpr, float]:
    """The low bits of the multiple of pi / 2 that is nearest to ``x``, what is left of ``x`` beyond it, and the largest
    ``x`` for which that holds: further out the multiple may be the second nearest. Each step is rounded once, the first
    not at all, since what it leaves has few enough bits."""
    # Adding 3 * 2^22 rounds to an integer and leaves it in the low bits.
    shift = like(1.5 * 2.0**23, x)
    shifted = bound(multiply_add(x, like(2.0 / math.pi, x), shift))
    n = bound(shifted - shift)
    r = _minus_multiple(_minus_multiple(x, n, HALF_PI_HIGH), n, HALF_PI_LOW)
    return _bits(shifted), bound(r), 4e5


def _turned_in_float64(x: TirExpr) -> tuple[TirExpr, TirExpr, float]:
    """The same without fused multiply-adds."""
    lanes = lanes_of(x)
    double = bound(tirx.Cast(vector_type("float64", lanes), x))
    # Adding 3 * 2^51 does there what 3 * 2^22 does in float32.
    shift = like(1.5 * 2.0**52, double)
    shifted = bound(multiply_add(double, like(2.0 / math.pi, double), shift))
    rest = multiply_add(bound(shifted - shift), like(-math.pi / 2.0, double), double)
    bits = tirx.reinterpret(vector_type("uint64", lanes), shifted)
    return tirx.Cast(vector_type("uint32", lanes), bits), bound(tirx.Cast(vector_type("float32", lanes), rest)), 1e7


_WAVES = ("sinf", "cosf")
_TWO_THIRDS = 0x3F2AAAAB


def _minus_multiple(x: TirExpr, n: TirExpr, step: float) -> TirExpr:
    return multiply_add(n, like(-step, x), x)


def _bits(x: TirExpr) -> TirExpr:
    return tirx.reinterpret(vector_type("uint32", lanes_of(x)), x)


def _signed_bits(x: TirExpr) -> TirExpr:
    return tirx.reinterpret(vector_type("int32", lanes_of(x)), x)


def _float(bits: TirExpr) -> TirExpr:
    return tirx.reinterpret(vector_type("float32", lanes_of(bits)), bits)


def _integer(number: int, x: TirExpr) -> TirExpr:
    return constant(number, "uint32", lanes_of(x))


def _signed(number: int, x: TirExpr) -> TirExpr:
    return constant(number, "int32", lanes_of(x))
