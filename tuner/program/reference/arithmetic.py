"""Scalar arithmetic of programs on NumPy arrays: values in float64 or exact integers, and bounds on kernels' rounding.

A kernel computes in float32 (see ``dtypes``), in an order of its own. Beside each value stands how far a kernel's may
lie from it: UNIT of every result's magnitude, carried through whatever is computed from it. Where a value decides (a
comparison, ``floor``, an index), and may fall on either side, the bound covers both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.arrays import NUMPY
from tuner.program.language.dtypes import DTYPES, FLOATS, INTEGERS
from tuner.program.language.expr import COMPARISONS
from tuner.program.language.rounding import TF32

Array = NDArray[Any]
Error = NDArray[np.float64] | None

VALUES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(np.float64) if name in FLOATS else dtype for name, dtype in NUMPY.items()
}
"""The NumPy dtype that values of a dtype have here."""

UNIT: Mapping[str, float] = {"float64": 2.0**-51, "float32": 2.0**-23, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""What rounding a result may change, as a share of it: twice the unit roundoff of what is computed in, since kernels
multiply by reciprocals and the reference rounds too; the unit roundoff of what is only stored."""
FACTOR_UNIT: Mapping[str, float] = {**UNIT, TF32: 2.0**-10}
"""The same of a product whose factors are rounded: one of them to a short float, both to TF32."""
RANGES: Mapping[str, tuple[float, float]] = {
    "float64": (2.0**-1022, float(np.finfo(np.float64).max)),
    "float32": (2.0**-125, float(np.finfo(np.float32).max)),
    "float16": (2.0**-14, 65504.0),
    "bfloat16": (2.0**-125, 2.0**128 - 2.0**120),
}
"""The number below which kernels may flush to zero, the smallest normal one or (float32's exp) the next power of two;
and the largest one."""
FUNCTION_UNITS = 4.0
"""The error that a scalar function may have, in UNITs: vectorised kernels approximate them by polynomials."""
ROUNDED_UNITS = 3.0
"""What rounding the factors of a sum may change, in FACTOR_UNITs of the root of their products' squares. A rounding is
at most UNIT of its factor, and in the root mean square 1 / sqrt(3) of that: 3 is five deviations of a sum of
independent ones. Since n terms are at most sqrt(n) times the root of their squares, it is all that nine of them can do,
too. Factors that are equal round alike: then it is the other factors that have to be independent, as random inputs
are."""
SATURATING = frozenset({"tanh", "erf", "sigmoid", "sin", "cos", "log"})
"""Functions whose approximations are as good as their largest values: FUNCTION_UNITS also hold as an absolute bound."""
SLOPES: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.ones_like,
    "sin": np.ones_like,
    "cos": np.ones_like,
    "tanh": lambda x: 1.0 / np.cosh(x) ** 2,
    "erf": lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-x * x),
    "sigmoid": lambda x: 0.25 / np.cosh(x / 2.0) ** 2,
}
"""The steepest slope at ``x >= 0`` or beyond, on either side of 0. Other functions of one argument are monotone, and
are evaluated at both ends of an interval."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Values, and how far a kernel's may lie from each; None: they are the same. An error of inf: anything goes."""

    value: Array
    error: Error = None


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x), "tanh": np.tanh, "erf": _erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)), "sin": np.sin, "cos": np.cos, "abs": np.abs, "round": np.rint,
    "floor": np.floor,
}  # fmt: skip
_EXACT = frozenset({"abs", "round", "floor"})
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.remainder,
    "<<": np.left_shift, ">>": np.right_shift, "&": np.bitwise_and, "|": np.bitwise_or, "==": np.equal,
    "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


class Arithmetic:
    """Operations on Bounded arrays; without ``bounds`` no error is ever computed. Call inside ``np.errstate``."""

    def __init__(self, bounds: bool) -> None:
        self.bounds = bounds

    def constant(self, value: float, dtype: str) -> Bounded:
        array = np.asarray(value, VALUES[dtype])
        rounding = abs(float(np.float32(value)) - value) if dtype == "float32" and math.isfinite(value) else 0.0
        return Bounded(array, np.asarray(rounding) if self.bounds and rounding else None)

    def converted(self, x: Bounded, dtype: str) -> Bounded:
        """An operand in the type that an operation is done in. It holds all its values, but for large integers that
        become floats: those are rounded as in a kernel."""
        if dtype in FLOATS and x.value.dtype.kind == "i" and x.value.dtype.itemsize > 2:
            return self._narrowed(x, lambda value: _as_float(value, dtype))
        return Bounded(x.value.astype(VALUES[dtype], copy=False), x.error)

    def negated(self, x: Bounded, dtype: str) -> Bounded:
        return Bounded(-self.converted(x, dtype).value, x.error)

    def binary(self, operator: str, left: Bounded, right: Bounded, dtype: str) -> Bounded:
        """``left operator right`` (``min`` and ``max`` included) in ``dtype``: of a comparison that of both sides."""
        left, right = self.converted(left, dtype), self.converted(right, dtype)
        if operator in COMPARISONS:
            return self._comparison(operator, left, right)
        value = _BINARY[operator](left.value, right.value)
        if not self.bounds:
            return Bounded(value)
        if operator in ("min", "max"):
            return Bounded(value, _larger(left.error, right.error))
        error = _propagated(operator, left, right, value)
        return Bounded(value, self.rounded(value, error, dtype) if operator in "+-*/" else error)

    def _comparison(self, operator: str, left: Bounded, right: Bounded) -> Bounded:
        value = _BINARY[operator](left.value, right.value)
        error = _added(left.error, right.error)
        if error is None:
            return Bounded(value)
        close = np.abs(np.subtract(left.value, right.value, dtype=np.float64)) <= error
        return Bounded(value, np.where(close & (error > 0), 1.0, 0.0))

    def function(self, name: str, x: Bounded, dtype: str) -> Bounded:
        """A function of one argument."""
        x = self.converted(x, dtype)
        if dtype in INTEGERS:
            return Bounded(np.abs(x.value) if name == "abs" else x.value, x.error)
        function = _FUNCTIONS[name]
        value = function(x.value)
        if not self.bounds:
            return Bounded(value)
        error = None if x.error is None else _image(name, function, x, value)
        if name in _EXACT:
            return Bounded(value, error)
        floor = FUNCTION_UNITS * UNIT[dtype] if name in SATURATING else 0.0
        return Bounded(value, self.rounded(value, error, dtype, FUNCTION_UNITS, floor))

    def where(self, condition: Bounded, yes: Bounded, no: Bounded, dtype: str) -> Bounded:
        chosen = condition.value.astype(bool, copy=False)
        yes, no = self.converted(yes, dtype), self.converted(no, dtype)
        value = np.where(chosen, yes.value, no.value)
        error: Error = None
        if yes.error is not None or no.error is not None:
            error = np.where(chosen, _or_zero(yes.error), _or_zero(no.error))
        if condition.error is not None:
            either = _gap(yes.value, no.value) + np.maximum(_or_zero(yes.error), _or_zero(no.error))
            error = np.where(condition.error > 0, either, _or_zero(error))
        return Bounded(value, error)

    def cast(self, x: Bounded, source: str, dtype: str) -> Bounded:
        """``x``, computed in ``source``, as ``cast`` gives it: rounded to a narrower float, truncated to an integer."""
        if dtype in FLOATS:
            if source in FLOATS and UNIT[dtype] <= UNIT[source]:
                return self.converted(x, dtype)
            return self._narrowed(x, lambda value: _as_float(value, dtype))
        if dtype == "bool":
            error = None if x.error is None else np.where((np.abs(x.value) <= x.error) & (x.error > 0), 1.0, 0.0)
            return Bounded(x.value != 0, error)
        if source in FLOATS:
            return self._truncated(x, dtype)
        value = x.value.astype(VALUES[dtype])
        return Bounded(
            value, None if x.error is None else np.where((x.error > 0) & (value != x.value), np.inf, x.error)
        )

    def stored(self, x: Bounded, source: str, dtype: str) -> Bounded:
        """``x`` as a tensor of ``dtype`` holds it. Floats stay as they are: the bound covers the rounding."""
        if dtype not in FLOATS or source not in FLOATS:
            return self.cast(x, source, dtype)
        exact = not self.bounds or UNIT[dtype] <= UNIT[source]
        return x if exact else Bounded(x.value, self.rounded(x.value, x.error, dtype))

    def _narrowed(self, x: Bounded, function: Callable[[Array], Array]) -> Bounded:
        value = function(x.value)
        return Bounded(value, None if x.error is None else _image("cast", function, x, value))

    def _truncated(self, x: Bounded, dtype: str) -> Bounded:
        """Towards zero; what the integer cannot hold is undefined, so that anything goes."""
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype != "bool" else (0, 1)
        whole = self._narrowed(x, np.trunc)
        holds = (whole.value >= low) & (whole.value <= high)
        value = np.where(holds, whole.value, 0.0).astype(VALUES[dtype])
        if not self.bounds or (whole.error is None and holds.all()):
            return Bounded(value, whole.error)
        return Bounded(value, np.where(holds, _or_zero(whole.error), np.inf))

    def rounded(self, value: Array, error: Error, dtype: str, units: float = 1.0, floor: float = 0.0) -> Error:
        """``error`` and that of ``units`` roundings to ``dtype``. Beyond its largest number anything goes."""
        if dtype not in FLOATS:
            return error
        smallest, largest = RANGES[dtype]
        total: NDArray[np.float64] = np.abs(value)
        over = total > largest
        total = total * (units * UNIT[dtype]) + (floor + smallest)
        if error is not None:
            total = np.add(total, error)
        if np.any(over):
            # An infinity is what it is, unless it came of a division by what may not be 0.
            certain = np.isinf(value) & np.isfinite(_or_zero(error))
            total = np.where(over, np.where(certain, 0.0, np.inf), total)
        return total

    def summed(self, sums: Sums, terms: int, dtype: str) -> Bounded:
        """A reduction by sum or product of ``terms`` values, done in ``dtype`` in any order."""
        if sums.size is None or sums.grown is None:
            return Bounded(sums.value)
        spread = math.sqrt(terms)
        error = np.maximum(sums.grown - sums.size, 0.0)
        if dtype in FLOATS:
            unit = UNIT[dtype]
            # Roundings of random signs add up as the root of their number. In a long sum of terms of both signs they
            # are smaller than that, since the partial sums are: no bound may hide that one term is missing.
            share = min(spread, max(16.0, 0.1 / (max(terms, 1) * unit)))
            own = unit * ((2.0 + share) * sums.size + spread * np.abs(sums.value))
            return Bounded(sums.value, self.rounded(sums.value, error + own, dtype, units=0.0))
        return Bounded(sums.value, error)

    def of_rounded(self, total: Bounded, squares: Array, dtype: str) -> Bounded:
        """A sum of products of which a kernel may round factors to ``dtype`` first. ``squares``: the sum of theirs.

        Roundings of random signs add up as the root of that; those of factors that are equal are of one sign, and a
        share of the sum."""
        own = FACTOR_UNIT[dtype] * (ROUNDED_UNITS * np.sqrt(squares) + np.abs(total.value))
        return Bounded(total.value, own if total.error is None else total.error + own)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A sum (or product) of values, the same of their magnitudes, and of their magnitudes with the errors added."""

    value: Array
    size: Error = None
    grown: Error = None


def _propagated(operator: str, left: Bounded, right: Bounded, value: Array) -> Error:
    """What the errors of the operands make of the result's."""
    if left.error is None and right.error is None:
        return None
    e, f = _or_zero(left.error), _or_zero(right.error)
    if operator in ("+", "-"):
        return np.asarray(e + f)
    if operator == "*":
        return np.asarray(_times(np.abs(left.value), f) + _times(np.abs(right.value) + f, e))
    if operator == "/":
        room = np.abs(right.value) - f
        return np.where((room > 0) | (f == 0), (e + _times(np.abs(value), f)) / np.where(room > 0, room, 1.0), np.inf)
    # Bits and remainders: an operand that is not certain makes anything.
    return np.where((e > 0) | (f > 0), np.inf, 0.0)


def _image(name: str, function: Callable[[Array], Array], x: Bounded, value: Array) -> NDArray[np.float64]:
    """How far the values of a function over ``x``'s interval lie from that in its middle."""
    error = _or_zero(x.error)
    if name in SLOPES:
        return np.asarray(SLOPES[name](np.maximum(np.abs(x.value) - error, 0.0)) * error)
    if name == "exp":
        return np.asarray(_times(value, np.expm1(error)))
    above, below = function(x.value + error), function(x.value - error)
    reach = np.maximum(_gap(above, value), _gap(below, value))
    # The interval reaches out of where the function is defined, or into it.
    undefined = np.isnan(above) & np.isnan(below) & np.isnan(value)
    return np.where(np.isnan(reach) & ~undefined, np.inf, reach)


def _as_float(value: Array, dtype: str) -> Array:
    """Rounded to a float: to a short one by way of float32, that these are computed in."""
    wide = value.astype(np.float32) if DTYPES[dtype].bits < 32 else value
    return wide.astype(NUMPY[dtype]).astype(np.float64)


def _gap(a: Array, b: Array) -> NDArray[np.float64]:
    """The distance; 0 between equal infinities."""
    return np.where(a == b, 0.0, np.abs(np.subtract(a, b, dtype=np.float64)))


def _times(size: Array, error: Array) -> Array:
    """Their product, where no error makes none of anything, and an infinity stays what it is."""
    product = size * error
    if np.isfinite(product.sum()):
        return np.asarray(product)
    return np.where(np.equal(error, 0.0) | np.isinf(size), 0.0, product)


def _or_zero(error: Error) -> Array:
    return np.zeros(()) if error is None else error


def _added(a: Error, b: Error) -> Error:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _larger(a: Error, b: Error) -> Error:
    if a is None or b is None:
        return b if a is None else a
    return np.maximum(a, b)
