"""Elements in memory and in registers: every dtype loaded, computed with and stored, the last vector in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.shares import diagonal
from tests.tuner.schedule.vector.compiling import TARGETS, elementwise, numpy_type
from tuner.schedule.vector.dtypes import cast

DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "float64", "bool")
SIZES = (0, 1, 3, 4, 7, 16, 37)


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even, by integer arithmetic; no NaN."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def values(dtype: str, size: int) -> NDArray[Any]:
    rng = np.random.default_rng(size)
    if dtype == "bfloat16":
        return bfloat16(rng.uniform(-100, 100, size).astype(np.float32))
    low = 0 if dtype in ("bool", "uint8") else -100
    return rng.uniform(low, 2 if dtype == "bool" else 100, size).astype(numpy_type(dtype))


def numbers(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    return floats(array) if dtype == "bfloat16" else array


def casted(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    return bfloat16(array) if dtype == "bfloat16" else array.astype(numpy_type(dtype))


@pytest.mark.parametrize(("source", "target"), diagonal(DTYPES, ["x86-64", "native"], every=2))
def test_every_dtype_is_cast_to_every_other(source: str, target: str, tmp_path: Path) -> None:
    # Not to uint8: what a negative float becomes there is not defined.
    wanted = [dtype for dtype in DTYPES if dtype != "uint8" or source in ("bool", "uint8")]
    outputs = [(dtype, lambda x, dtype=dtype: cast(x, dtype)) for dtype in wanted]
    function = elementwise(tmp_path, TARGETS[target], [source], outputs)
    for size in SIZES:
        array = values(source, size)
        for dtype, result in zip(wanted, function(array), strict=True):
            np.testing.assert_array_equal(result, casted(numbers(array, source), dtype), f"{source} to {dtype}")


@pytest.mark.parametrize("target", TARGETS)
def test_rounding_is_to_nearest_even_and_keeps_infinities_and_nan(target: str, tmp_path: Path) -> None:
    function = elementwise(
        tmp_path, TARGETS[target], ["float32"], [(dtype, lambda x: x) for dtype in ("float16", "bfloat16")]
    )
    bits = np.concatenate([np.arange(0, 2**32, 65521, dtype=np.uint64), np.arange(0x3F800000, 0x3F830000, 0x1000)])
    ordinary = bits.astype(np.uint32).view(np.float32)
    ordinary = ordinary[np.isfinite(ordinary)]
    with np.errstate(over="ignore"):
        half, brain = function(ordinary)
        np.testing.assert_array_equal(half, ordinary.astype(np.float16))
        np.testing.assert_array_equal(brain, bfloat16(ordinary))
    special = np.array([np.inf, -np.inf, np.nan] * 5, np.float32)
    special[-1:].view(np.uint32)[0] = 0x7F800001
    half, brain = function(special)
    np.testing.assert_array_equal(half, special.astype(np.float16))
    np.testing.assert_array_equal(floats(brain), special)


def test_nan_and_what_is_not_zero_are_true(tmp_path: Path) -> None:
    function = elementwise(tmp_path, TARGETS["native"], ["float32"], [("bool", lambda x: cast(x, "bool"))])
    x = np.array([0, -0.0, 1, 0.3, 256, -1, np.nan, np.inf, 1e-45], np.float32)
    np.testing.assert_array_equal(function(x)[0], x.astype(np.bool_))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_to_a_short_float_rounds_and_stays_a_float32(dtype: str, tmp_path: Path) -> None:
    function = elementwise(tmp_path, TARGETS["native"], ["float32"], [("float32", lambda x: cast(x, dtype))])
    x = np.random.default_rng(0).uniform(-100, 100, 1000).astype(np.float32)
    rounded = floats(bfloat16(x)) if dtype == "bfloat16" else x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(function(x)[0], rounded)
