"""Operators and exact functions as NumPy has them: NaN, infinities, rounding that a simplifier must not undo."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from tvm import tirx

from tests.tuner.schedule.vector.compiling import TARGETS, Body, Expr, elementwise
from tuner.schedule.vector.arithmetic import bound, combined, like, maximum, minimum, multiply_add
from tuner.schedule.vector.functions import apply
from tuner.schedule.vector.memory import Vectors

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan], np.float32)
PAIRS = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32).T.copy()


@pytest.mark.parametrize("target", TARGETS)
def test_operators_of_floats_are_those_of_numpy(target: str, tmp_path: Path) -> None:
    signs = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
    compared = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "==": np.equal,
        "!=": np.not_equal,
    }
    outputs: list[tuple[str, Body]] = [("float32", lambda a, b, sign=sign: combined(sign, a, b)) for sign in signs]
    outputs += [("bool", lambda a, b, sign=sign: combined(sign, a, b)) for sign in compared]
    outputs += [("float32", minimum), ("float32", maximum)]
    results = elementwise(tmp_path, TARGETS[target], ["float32"] * 2, outputs)(*PAIRS)
    wanted: list[np.ufunc] = [*signs.values(), *compared.values(), np.minimum, np.maximum]
    with np.errstate(all="ignore"):
        for function, result in zip(wanted, results, strict=True):
            np.testing.assert_array_equal(result, function(*PAIRS), function.__name__)


def test_what_holds_for_real_numbers_alone_is_not_simplified(tmp_path: Path) -> None:
    large = 1.5 * 2.0**23
    outputs: list[tuple[str, Body]] = [
        ("float32", lambda x: combined("-", x, x)),
        ("bool", lambda x: combined("!=", x, x)),
        ("float32", lambda x: combined("-", bound(combined("+", x, like(large, x))), like(large, x))),
        ("float32", lambda x: apply("where", combined("==", x, x), x, like(0.0, x))),
    ]
    difference, is_nan, rounded, cleared = elementwise(tmp_path, TARGETS["native"], ["float32"], outputs)(SPECIAL)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(difference, SPECIAL - SPECIAL)
    np.testing.assert_array_equal(is_nan, np.isnan(SPECIAL))
    np.testing.assert_array_equal(rounded, np.round(SPECIAL))
    np.testing.assert_array_equal(cleared, np.where(np.isnan(SPECIAL), 0, SPECIAL))


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
def test_operators_of_integers(dtype: str, tmp_path: Path) -> None:
    signs = {"&": np.bitwise_and, "|": np.bitwise_or, "+": np.add, "-": np.subtract}
    outputs: list[tuple[str, Body]] = [(dtype, lambda a, b, sign=sign: combined(sign, a, b)) for sign in signs]
    functions = {"min": np.minimum, "max": np.maximum}
    outputs += [(dtype, lambda a, b, name=name: apply(name, a, b)) for name in functions]
    outputs += [(dtype, lambda a, b: apply("abs", a)), (dtype, lambda a, b: apply("round", a))]
    a, b = np.arange(-20, 20).astype(dtype), np.resize([3, -7, 1], 40).astype(dtype)
    results = elementwise(tmp_path, TARGETS["native"], [dtype] * 2, outputs)(a, b)
    wanted: list[Body] = [*signs.values(), *functions.values(), lambda x, y: np.abs(x), lambda x, y: x]
    for function, result in zip(wanted, results, strict=True):
        np.testing.assert_array_equal(result, function(a, b))


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_integers_are_divided_downwards_by_what_is_not_read(target: str, dtype: str, tmp_path: Path) -> None:
    # An element of a tensor is no divisor: the lanes that the end of a tensor masks are 0.
    divisors = (1, 3, 7)
    outputs: list[tuple[str, Body]] = [
        (dtype, lambda a, sign=sign, by=by: combined(sign, a, like(by, a))) for by in divisors for sign in ("//", "%")
    ]
    a = np.arange(-20, 21).astype(dtype)
    results = iter(elementwise(tmp_path, TARGETS[target], [dtype], outputs)(a))
    for by in divisors:
        np.testing.assert_array_equal(next(results), a // by)
        np.testing.assert_array_equal(next(results), a % by)


def test_shifts_and_conditions(tmp_path: Path) -> None:
    outputs: list[tuple[str, Body]] = [
        ("int32", lambda a, b: combined("<<", a, like(3, a))),
        ("int32", lambda a, b: combined(">>", a, like(1, a))),
        ("int32", lambda a, b: apply("where", combined("&", a < b, a > like(-5, a)), a, b)),
        ("int32", lambda a, b: apply("where", combined("|", a < b, a > like(15, a)), a, b)),
    ]
    a, b = np.arange(-20, 20, dtype=np.int32), np.resize(np.array([3, -7, 1], np.int32), 40)
    left, right, both, either = elementwise(tmp_path, TARGETS["native"], ["int32"] * 2, outputs)(a, b)
    np.testing.assert_array_equal(left, a << 3)
    np.testing.assert_array_equal(right, a >> 1)
    np.testing.assert_array_equal(both, np.where((a < b) & (a > -5), a, b))
    np.testing.assert_array_equal(either, np.where((a < b) | (a > 15), a, b))


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_float64_are_those_of_the_c_library(target: str, tmp_path: Path) -> None:
    exact: dict[str, Body] = {
        "exp": math.exp,
        "log": math.log,
        "tanh": math.tanh,
        "erf": math.erf,
        "sin": math.sin,
        "cos": math.cos,
        "sqrt": math.sqrt,
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "floor": math.floor,
        "round": round,
        "abs": abs,
    }
    outputs = [("float64", lambda x, name=name: apply(name, x)) for name in exact]
    x = np.random.default_rng(0).uniform(0.01, 20, 37)
    lanes = TARGETS[target].hardware.lanes(8)
    for name, result in zip(exact, elementwise(tmp_path, TARGETS[target], ["float64"], outputs, lanes)(x), strict=True):
        np.testing.assert_allclose(result, [exact[name](value) for value in x], 1e-15, err_msg=name)


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_are_combined_to_one(target: str, tmp_path: Path) -> None:
    lanes = TARGETS[target].hardware.lanes()

    def everywhere(value: Expr, combine: Body) -> Expr:
        return tirx.Broadcast(Vectors(lanes).across(value, combine), lanes)

    outputs: list[tuple[str, Body]] = [
        ("float32", lambda x: everywhere(x, lambda a, b: a + b)),
        ("float32", lambda x: everywhere(x, maximum)),
        ("float32", lambda x: multiply_add(x, x, x)),
    ]
    x = np.random.default_rng(0).uniform(-1, 1, lanes * 3).astype(np.float32)
    x[-1] = np.nan
    total, most, squared = elementwise(tmp_path, TARGETS[target], ["float32"], outputs)(x)
    rows = x.reshape(3, lanes)
    np.testing.assert_allclose(total, np.repeat(rows.sum(1), lanes), 1e-6, 1e-6)
    np.testing.assert_array_equal(most, np.repeat(rows.max(1), lanes))
    np.testing.assert_allclose(squared, x * x + x, 1e-6, 1e-7)


def test_what_has_no_code_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exp of int32 has no code"):
        elementwise(tmp_path, TARGETS["native"], ["int32"], [("int32", lambda x: apply("exp", x))])
