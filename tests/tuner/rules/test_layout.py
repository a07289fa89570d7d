"""Packed weights: every element stands where the layout says, the rest is zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.rules.layout import PanelLayout, layout_from_json


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16))
def test_elements_stand_where_the_layout_says(n: int, k: int, panel: int) -> None:
    weight = np.arange(1, n * k + 1, dtype=np.float32).reshape(n, k)
    layout = PanelLayout(panel)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape((n, k))
    assert packed.flags.c_contiguous
    for j in range(n):
        assert (packed[j // panel, :, j % panel] == weight[j]).all()
    assert np.count_nonzero(packed) == n * k


def test_any_strides_will_do() -> None:
    weight = np.arange(60, dtype=np.float32).reshape(6, 10)
    layout = PanelLayout(4)
    expected = layout.pack(np.ascontiguousarray(weight[::2, ::-3]))
    assert (layout.pack(weight[::2, ::-3]) == expected).all()
    assert (layout.pack(np.asfortranarray(weight)) == layout.pack(weight)).all()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_every_dtype_is_kept(dtype: str) -> None:
    packed = PanelLayout(4).pack(np.arange(6).reshape(3, 2).astype(dtype))
    assert packed.dtype == dtype
    assert packed[0, 1].tolist() == [1, 3, 5, 0]


def test_a_layout_comes_back_from_json() -> None:
    assert layout_from_json(PanelLayout(48).to_json()) == PanelLayout(48)
    with pytest.raises(InvalidInput, match="packed_layout"):
        layout_from_json({"kind": "rows"})
