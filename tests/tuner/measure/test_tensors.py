"""Arrays handed to kernels keep their dtype, shape and memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tuner.measure.tensors import tensor_of
from tuner.program.language.arrays import NUMPY


@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), ()])
def test_a_tensor_is_the_array(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape).astype(NUMPY[dtype])
    tensor = tensor_of(array)
    assert str(tensor.dtype) == dtype
    assert tuple(tensor.shape) == shape
    assert not array.size or tensor.data_ptr() == array.ctypes.data


def test_a_tensor_keeps_the_memory_of_its_array() -> None:
    tensor = tensor_of(np.full(1000, 3.5).astype(NUMPY["bfloat16"]))
    bits = np.ctypeslib.as_array((ctypes.c_uint16 * 1000).from_address(tensor.data_ptr()))
    assert (bits.view(NUMPY["bfloat16"]) == 3.5).all()
