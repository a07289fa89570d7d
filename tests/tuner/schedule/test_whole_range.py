"""Scalar functions in kernels, of numbers of every size: what the reference computes, within its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiled import built_problems, loaded
from tests.emulated import caller, emulated
from tests.shares import chosen
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import ProgramOp
from tuner.program.job.task import SearchTask
from tuner.program.language.arrays import NUMPY
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.reference import expected
from tuner.program.target import Target, native
from tuner.schedule import default_kernel

FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "abs", "round", "floor")
FURTHER = (
    "x[i] * (0.5 + 0.5 * erf(x[i] * 0.70710678))", "exp(2.5 * log(x[i]))", "min(x[i], y[i])", "max(x[i], y[i])",
    "sin(x[i]) * cos(x[i])", "where(x[i] > y[i], x[i], y[i])", "1 / x[i]", "cast(x[i], int32)", "cast(x[i], bool)",
)  # fmt: skip
DTYPES = ("float32", "float64", "float16", "bfloat16")
BITS: dict[str, Any] = {"float32": np.uint32, "float64": np.uint64, "float16": np.uint16, "bfloat16": np.uint16}
CallOf = Callable[[bytes], Callable[[Sequence[NDArray[Any]]], object]]
"""A binary, ready to be called."""
T = ShapeVar("T", range(1, 65))
ARM = Target.from_json({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 1})


def of_every_size(dtype: str, count: int) -> NDArray[Any]:
    """Numbers evenly spread over the patterns of bits: every sign and exponent, denormals, infinities and NaN."""
    bits = BITS[dtype]
    patterns = np.linspace(0, np.iinfo(bits).max, count).astype(np.float64)
    spread = np.minimum(patterns, np.nextafter(float(np.iinfo(bits).max), 0)).astype(bits).view(NUMPY[dtype])
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e4, -6e4, 0.5, 2.5]).astype(NUMPY[dtype])
    return np.concatenate([spread, special])


def wrong(functions: Sequence[str], dtype: str, target: Target, count: int, call_of: CallOf) -> list[str]:
    """Where a kernel that computes all ``functions`` leaves the bounds of the reference."""
    outputs = [f"out{number}" for number in range(len(functions))]
    text = "\n".join(f"{name}[i] = {function}" for name, function in zip(outputs, functions, strict=True))
    whole = {name: "int32" for name, function in zip(outputs, functions, strict=True) if "int32" in function}
    names = [name for name in "xy" if f"{name}[" in text]
    types = {**dict.fromkeys([*names, *outputs], dtype), **whole}
    task = SearchTask(ProgramOp(text), {"i": T}, (T,), target=target, dtype=types)
    x = of_every_size(dtype, count)
    inputs = [x, np.random.default_rng(0).permutation(x)][: len(names)]
    results = [np.zeros(len(x), NUMPY[types[name]]) for name in outputs]
    call_of(compile_candidate(task, default_kernel(task)).binary)([*inputs, *results])
    with np.errstate(all="ignore"):
        wanted = expected(task.workload, inputs, dict.fromkeys(task.workload.symbols, len(x)))
        found = [np.flatnonzero(right.wrong(result)) for right, result in zip(wanted, results, strict=True)]
    return [
        f"{function} of {x[at[0]]}: {result[at[0]]}, not {right.value[at[0]]}"
        for function, result, right, at in zip(functions, results, wanted, found, strict=True)
        if at.size
    ]


@pytest.mark.parametrize("dtype", chosen(["float32"], DTYPES))
def test_functions_are_right_for_numbers_of_every_size(dtype: str) -> None:
    functions = [*(f"{name}(x[i])" for name in FUNCTIONS), *FURTHER]
    assert wrong(functions, dtype, native(), 100_000, loaded) == []


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_shifts_by_any_number_of_bits_are_those_of_numpy(dtype: str) -> None:
    text = "left[i] = x[i] << y[i]\nright[i] = x[i] >> y[i]"
    types = dict.fromkeys(("x", "y", "left", "right"), dtype)
    task = SearchTask(ProgramOp(text), {"i": T}, (T,), target=native(), dtype=types)
    info: Any = np.iinfo(dtype)
    numbers = [1, 5, info.max, info.min, -3 if info.min else 3]
    amounts = [*range(70), info.max, *((-1, -8, info.min) if info.min else ())]
    x, y = (each.ravel() for each in np.meshgrid(np.array(numbers, dtype), np.array(amounts, dtype)))
    left, right = np.zeros_like(x), np.zeros_like(x)
    loaded(compile_candidate(task, default_kernel(task)).binary)([x, y, left, right])
    wanted = expected(task.workload, [x, y], dict.fromkeys(task.workload.symbols, len(x)))
    for result, its in zip((left, right), wanted, strict=True):
        np.testing.assert_array_equal(result, its.value)


INTEGERS = (
    "(x[i, j] * 2) // 2", "(x[i, j] * 6) % 3", "where(x[i, j] + 1 > x[i, j], 1, 0)",
    "where(x[i, j] * x[i, j] < 0, 1, 0)", "abs(x[i, j]) // 2", "-x[i, j] // 2", "max(x[i, j] + 1, x[i, j])",
    "x[i, j] * (2147483647 << 9)", "x[i, j] - (i << 62)",
    "(y[i, j] * 4 + 3) // 4", "(x[i, j] - y[i, j]) % 7", "(x[i, j] * i * 3) // 3", "where(0 - y[i, j] < 0, 1, 0)",
)  # fmt: skip
"""Expressions that are simpler for whole numbers, and other numbers where integers wrap around."""


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("text", ["out{0}[i, j] = {1}", "out{0}[i] = sum(j) {1}", "out{0}[j] = max(i) {1}"])
def test_integers_wrap_around(text: str, dtype: str) -> None:
    program = "\n".join(text.format(at, body) for at, body in enumerate(INTEGERS))
    task = SearchTask(ProgramOp(program), {"i": T, "j": 5}, (T,), target=native(), dtype={"x": dtype, "y": dtype})
    info: Any = np.iinfo(dtype)
    numbers = np.array([1, -2, info.max, info.min, info.max // 2 + 1, info.min // 2 - 1, 77], dtype)
    inputs = [np.resize(numbers, (21, 5)), np.resize(numbers[::-1], (21, 5))]
    dims = dict.fromkeys(task.workload.symbols, 21)
    outputs = [np.zeros(tensor.shape(dims), NUMPY[tensor.dtype]) for tensor in task.workload.outputs]
    loaded(compile_candidate(task, default_kernel(task)).binary)([*inputs, *outputs])
    for result, its in zip(outputs, expected(task.workload, inputs, dims), strict=True):
        np.testing.assert_array_equal(result, its.value)


@pytest.mark.parametrize("reducer", ["prod", "sum"])
def test_reductions_of_integers_wrap_around(reducer: str) -> None:
    """The product, or the sum, of numbers above 0 may be 0."""
    text = f"any[i] = {reducer}(j) ((x[i, extent(j) - 1 - j]) & 2147483647) | 2"
    types = {"x": "int32", "any": "bool"}
    task = SearchTask(ProgramOp(text), {"i": T, "j": 40}, (T,), target=native(), dtype=types)
    x = np.array([[0] * 38 + [2**31 - 38] * 2, [1] * 40], np.int32)
    any_of = np.zeros(2, bool)
    loaded(compile_candidate(task, default_kernel(task)).binary)([x, any_of])
    (wanted,) = expected(task.workload, [x], {"m": 2})
    np.testing.assert_array_equal(any_of, wanted.value)
    assert not any_of[0]


ZEROS = (
    "0 * x[i, j]", "x[i, j] * (1 - 1)", "x[i, j] * (i - i)", "x[i, j] * j", "0 / x[i, j]", "x[i, j] / 0",
    "x[i, j] / -0.0", "0 / 0 + x[i, j]", "x[i, j] / (0 * x[i, j])",
)  # fmt: skip


@pytest.mark.parametrize("text", ["out{0}[i, j] = {1}", "out{0}[i] = sum(j) {1}"])
def test_zero_times_what_is_no_number_is_none(text: str) -> None:
    """Nor is zero over zero zero, and what is divided by zero is infinite."""
    program = "\n".join(text.format(at, body) for at, body in enumerate(ZEROS))
    task = SearchTask(ProgramOp(program), {"i": T, "j": 1}, (T,), target=native())
    x = np.resize(np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan], np.float32), (37, 1))
    outputs = [np.zeros(tensor.shape({"m": 37}), np.float32) for tensor in task.workload.outputs]
    loaded(compile_candidate(task, default_kernel(task)).binary)([x, *outputs])
    for result, its in zip(outputs, expected(task.workload, [x], {"m": 37}), strict=True):
        np.testing.assert_array_equal(result, its.value.astype(np.float32))


@pytest.mark.parametrize("amount", ["40", "63", "i", "extent(i)", "(i - 5)", "(4*(i % 2))"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_shifts_by_constants_axes_and_extents_are_those_of_numpy(dtype: str, amount: str) -> None:
    """Elements and sums of them: the latter are computed one by one."""
    text = f"left[i, j] = x[i, j] << {amount}\nright[j] = sum(i) x[i, j] >> {amount}"
    task = SearchTask(
        ProgramOp(text), {"i": T, "j": 3}, (T,), target=native(), dtype=dict.fromkeys(("x", "left", "right"), dtype)
    )
    assert built_problems(task, default_kernel(task), [{"m": 100}]) == []


def test_functions_are_right_for_numbers_of_every_size_on_aarch64(tmp_path: Path) -> None:
    program = caller(tmp_path)
    functions = [f"{name}(x[i])" for name in FUNCTIONS]
    assert wrong(functions, "float32", ARM, 20_000, lambda binary: emulated(binary, program, tmp_path)) == []
