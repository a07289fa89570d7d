"""Guarded arrays: alignment, poison and what is found damaged."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.measure.verification.guarded import GUARD, GUARD_ROWS, Guarded, bits
from tuner.program.language.arrays import NUMPY


@pytest.mark.parametrize("shape", [(), (1,), (37, 24), (3, 5, 7)])
@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize("skew", [0, 1])
def test_guarded_memory_surrounds_an_array_of_every_dtype(shape: tuple[int, ...], dtype: str, skew: int) -> None:
    guarded = Guarded.empty(shape, NUMPY[dtype], skew)
    assert (guarded.array.shape, guarded.array.dtype) == (shape, NUMPY[dtype])
    assert guarded.array.ctypes.data % 64 == skew * NUMPY[dtype].itemsize
    assert guarded.before.size == guarded.after.size == GUARD
    assert guarded.damage() is None
    guarded.array[...] = 1
    assert guarded.damage() is None


def test_what_stands_beside_long_rows_is_longer() -> None:
    assert Guarded.empty((2, 1000), np.dtype("float32")).after.size == GUARD_ROWS * 1000


def test_an_empty_output_is_guarded_on_both_sides() -> None:
    guarded = Guarded.empty((0, 24), np.dtype("float32"))
    assert (guarded.array.shape, guarded.array.strides, guarded.damage()) == ((0, 24), (96, 4), None)
    guarded.after[0] = 1
    assert "the nearest 1 away" in (guarded.damage() or "")


def test_a_copy_has_the_same_bits() -> None:
    values = np.array([np.nan, -0.0, 1.0]).astype(NUMPY["bfloat16"])
    assert np.array_equal(bits(Guarded.copy_of(values, skew=1).array), bits(values))
