"""Packed weights: every element stands where the layout says, the rest is zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.rules.layout import PanelLayout


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16))
def test_elements_stand_where_the_layout_says(n: int, k: int, panel: int) -> None:
    weight = np.arange(1, n * k + 1, dtype=np.float32).reshape(n, k)
    layout = PanelLayout(panel)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape(n, k)
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


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros((1, 2, 2), np.float32)])
def test_other_arrays_are_refused(bad: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    with pytest.raises(InvalidInput, match=r"float32 of shape \[n, k\]"):
        PanelLayout(4).pack(bad)


def test_a_layout_comes_back_from_json() -> None:
    assert PanelLayout.from_json(PanelLayout(48).to_json()) == PanelLayout(48)
    with pytest.raises(InvalidInput, match="packed_layout"):
        PanelLayout.from_json({"kind": "rows"})
