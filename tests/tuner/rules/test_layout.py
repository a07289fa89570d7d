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


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64])
def test_a_packed_array_keeps_its_dtype(dtype: type[np.generic]) -> None:
    weight = np.arange(21).reshape(7, 3).astype(dtype)
    packed = PanelLayout(4).pack(weight)
    assert packed.dtype == dtype
    assert (packed[1, 2, :3] == weight[4:7, 2]).all()


def test_layouts_are_told_apart_and_ordered() -> None:
    assert len({PanelLayout(8), PanelLayout(16), PanelLayout(8)}) == 2
    assert sorted([PanelLayout(16), PanelLayout(8)]) == [PanelLayout(8), PanelLayout(16)]


def test_a_layout_comes_back_from_json() -> None:
    assert layout_from_json(PanelLayout(48).to_json()) == PanelLayout(48)
    with pytest.raises(InvalidInput, match="packed_layouts"):
        layout_from_json({"kind": "rows"})
