"""Packed weights: every element stands where the layout says, the rest is zero."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr
from tuner.schedule import strassen
from tuner.schedule.layout import (
    LINE_ELEMENTS,
    CutLayout,
    Numbers,
    PackLayout,
    filter_layout,
    layout_from_json,
)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16))
def test_elements_stand_where_the_layout_says(n: int, k: int, panel: int) -> None:
    weight = np.arange(1, n * k + 1, dtype=np.float32).reshape(n, k)
    layout = PackLayout(panel)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape((n, k))
    assert packed.flags.c_contiguous
    for j in range(n):
        assert (packed[j // panel, :, j % panel] == weight[j]).all()
    assert np.count_nonzero(packed) == n * k


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 16), st.sampled_from([(1, 0), (2, 0), (4, 128)]))
def test_the_shape_for_symbols_is_that_of_every_array(n: int, k: int, panel: int, word: tuple[int, int]) -> None:
    layout = PackLayout(panel, *word)
    symbolic = [DimExpr.of(size) for size in layout.packed_shape([DimExpr.var("n"), DimExpr.var("k")])]
    assert tuple(size.evaluate({"n": n, "k": k}) for size in symbolic) == layout.packed_shape([n, k])
    assert layout.pack(np.zeros((n, k), np.int8)).shape == layout.packed_shape([n, k])


def test_any_strides_will_do() -> None:
    weight = np.arange(60, dtype=np.float32).reshape(6, 10)
    layout = PackLayout(4)
    expected = layout.pack(np.ascontiguousarray(weight[::2, ::-3]))
    assert (layout.pack(weight[::2, ::-3]) == expected).all()
    assert (layout.pack(np.asfortranarray(weight)) == layout.pack(weight)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64])
def test_a_packed_array_keeps_its_dtype(dtype: type[np.generic]) -> None:
    weight = np.arange(21).reshape(7, 3).astype(dtype)
    packed = PackLayout(4).pack(weight)
    assert packed.dtype == dtype
    assert (packed[1, 2, :3] == weight[4:7, 2]).all()


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16), st.sampled_from([2, 4]))
def test_groups_of_elements_stand_together(n: int, k: int, panel: int, group: int) -> None:
    weight = np.arange(1, n * k + 1, dtype=np.float32).reshape(n, k)
    layout = PackLayout(panel, group)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape((n, k))
    assert packed.flags.c_contiguous
    for j in range(n):
        own = packed[j // panel, :, j % panel * group : (j % panel + 1) * group].ravel()
        assert (own[:k] == weight[j]).all()
    assert np.count_nonzero(packed) == n * k
    assert layout_from_json(layout.to_json()) == layout


@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 16))
def test_a_panel_begins_with_what_an_offset_adds(n: int, k: int, panel: int) -> None:
    weight = np.random.default_rng(n).integers(-128, 128, (n, k)).astype(np.int8)
    layout = PackLayout(panel, 4, offset=128)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape((n, k))
    heads = np.ascontiguousarray(packed[:, 0]).view(np.int32).ravel()[:n]
    assert (heads == -128 * weight.sum(axis=1, dtype=np.int32)).all()
    assert (packed[:, 1:] == PackLayout(panel, 4).pack(weight)).all()
    assert layout_from_json(layout.to_json()) == layout


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 16), st.sampled_from([1, 2, 4]), st.integers(1, 16))
def test_words_are_filled_up_to_whole_multiplications(n: int, k: int, panel: int, group: int, whole: int) -> None:
    weight = np.arange(1, n * k + 1, dtype=np.float32).reshape(n, k)
    layout = PackLayout(panel, group, whole=whole)
    packed, words = layout.pack(weight), -(-k // group)
    assert packed.shape == layout.packed_shape((n, k))
    assert packed.shape[1] == -(-words // whole) * whole
    assert (packed[:, :words] == PackLayout(panel, group).pack(weight)).all()
    assert np.count_nonzero(packed) == n * k
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


@given(
    st.integers(1, 20), st.integers(1, 40), st.integers(1, 16), st.sampled_from(["uint8", "int8", "uint16", "int32"]),
    st.sampled_from(["along the steps", "along the rows"]), st.booleans(),
)  # fmt: skip
def test_numbers_of_four_bits_are_joined_in_the_order_of_steps(
    rows: int, steps: int, panel: int, dtype: str, lies: str, are_joined: bool
) -> None:
    each = 2 * np.dtype(dtype).itemsize
    numbers = np.random.default_rng(rows * steps).integers(0, 16, (rows, steps))
    axis, name = (1, "step") if lies == "along the steps" else (0, "row")
    index = tuple(f"{one}//{each}" if one == name else one for one in ("row", "step"))
    of = Numbers(rows, steps, index, f"4*({name}%{each})", each if are_joined else 1)
    layout = PackLayout(panel, numbers=(of,))
    weight = joined(numbers, axis, each, dtype)
    packed = layout.pack(weight)
    expected = joined(numbers, 1, of.joined, dtype)
    assert packed.shape == layout.packed_shape(weight.shape)
    assert packed.dtype == weight.dtype
    assert (packed == PackLayout(panel).pack(expected)).all()
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


def joined(numbers: np.ndarray, axis: int, each: int, dtype: str) -> np.ndarray:
    """As many neighbours along an axis in an element, the first in its lowest bits."""
    moved = np.moveaxis(numbers, axis, -1)
    padded = np.pad(moved, [(0, 0), (0, -moved.shape[1] % each)]).reshape(len(moved), -1, each)
    elements = (padded << 4 * np.arange(each)).sum(axis=-1).astype(f"uint{8 * np.dtype(dtype).itemsize}")
    return np.moveaxis(elements.view(dtype), -1, axis)


def test_places_of_numbers_are_checked() -> None:
    data = PackLayout(8, numbers=(Numbers(4, 8, ("row", "step//2"), "4*(step%2)", 2),)).to_json()
    for change in ({"shift": "4*(n%2)"}, {"joined": 0}, {"index": ["row", "import os"]}, {"rows": -1}):
        with pytest.raises(InvalidInput):
            layout_from_json({**data, **change})


def test_layouts_are_told_apart_and_ordered() -> None:
    assert len({PackLayout(8), PackLayout(16), PackLayout(8)}) == 2
    assert sorted([PackLayout(16), PackLayout(8)]) == [PackLayout(8), PackLayout(16)]


def test_a_layout_comes_back_from_json() -> None:
    assert layout_from_json(PackLayout(48).to_json()) == PackLayout(48)
    with pytest.raises(InvalidInput, match="packed_layouts"):
        layout_from_json({"kind": "rows"})


# A weight [o, c, r] of two groups of five channels each: o is two parts.
GROUPED = PackLayout(4, dims=((2, 5), (3,), (2,)), batch=(0,), rows=(1,), steps=(3, 2))
LINES = replace(GROUPED, panel=1)
LINES_OF_NONE = PackLayout(1, dims=((2,), (0,)))


def test_matrices_are_panels_of_parts_in_any_order() -> None:
    weight = np.arange(60, dtype=np.float32).reshape(10, 3, 2) + 1
    packed = GROUPED.pack(weight)
    assert packed.shape == GROUPED.packed_shape(weight.shape) == (4, 6, 4)
    for o, c, r in np.ndindex(10, 3, 2):
        group, row = divmod(o, 5)
        assert packed[2 * group + row // 4, 3 * r + c, row % 4] == weight[o, c, r]
    assert np.count_nonzero(packed) == weight.size


def test_matrices_are_rows_an_odd_number_of_lines_apart() -> None:
    weight = np.arange(60, dtype=np.float32).reshape(10, 3, 2) + 1
    packed = LINES.pack(weight)
    assert packed.shape == LINES.packed_shape(weight.shape) == (10, LINE_ELEMENTS)
    assert (packed[:, :6] == weight.transpose(0, 2, 1).reshape(10, 6)).all()
    assert not packed[:, 6:].any()
    wide = PackLayout(1, dims=((3,), (1024,)))
    assert wide.packed_shape((3, 1024))[1] == 65 * LINE_ELEMENTS


def signed(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


def test_a_cut_weight_is_packed_part_by_part() -> None:
    # All of the first dim, the last two columns of three backwards; and no column.
    parts = (((1, 2, 0, -1),), PackLayout(4, dims=((2,), (2,)))), (((1, 0, 0, 1),), LINES_OF_NONE)
    layout = CutLayout(parts, (2, 3))
    packed = layout.pack(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert packed.shape == layout.packed_shape((2, 3))
    assert (layout.first(0), layout.first(1), layout.shape(0)) == (0, 64, (1, 2, 4))
    assert packed[:8].tolist() == [2, 5, 0, 0, 1, 4, 0, 0]
    assert not packed[8:].any()
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout
    with pytest.raises(InvalidInput, match="kind: matrices"):
        layout_from_json({"kind": "cut", "sizes": [], "parts": [{"taken": [], "layout": PackLayout(8).to_json()}]})


@pytest.mark.parametrize(
    "taken", [[2, 0, 1, 1], [1, 0, 4, 1], [1, 3, 0, -1], [1, 0, 1, 0], [1, 0, 2**60, 1], [True, 0, 1, 1]]
)
def test_indices_that_a_weight_has_not_are_refused(taken: list[int]) -> None:
    part = {"taken": [taken], "layout": LINES_OF_NONE.to_json()}
    with pytest.raises(ValueError, match=r"not indices|not sizes|must not be zero"):
        layout_from_json({"kind": "cut", "sizes": [2, 3], "parts": [part]})


@pytest.mark.parametrize(
    "change",
    [{"panel": 0}, {"panel": -1}, {"panel": "4"}, {"panel": 10**30}, {"group": 0}, {"rows": [9]}, {"dims": [[-1]]}],
)
def test_numbers_that_no_layout_has_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="packed_layouts: "):
        layout_from_json(GROUPED.to_json() | change)


def test_taps_are_transformed_for_minimal_filtering() -> None:
    # A weight [r, o, s, c].
    weight = np.random.default_rng(0).standard_normal((3, 5, 3, 7)).astype(np.float32)
    layout = filter_layout(weight.shape, (1, 3, 0, 2))
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape(weight.shape) == (16 * 5, LINE_ELEMENTS)
    assert packed.dtype == np.float32
    points = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    for o, c in np.ndindex(5, 7):
        expected = points @ weight[:, o, :, c].astype(np.float64) @ points.T
        assert (packed[:, c].reshape(4, 4, 5)[:, :, o] == expected.astype(np.float32)).all()
    assert not packed[:, 7:].any()
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_taps_are_transformed_for_tiles_of_four_by_four_outputs() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 7, 3, 3)).astype(np.float32)
    layout = filter_layout(weight.shape, (0, 1, 2, 3), 4)
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape(weight.shape) == (36 * 5, LINE_ELEMENTS)
    # Toom and Cook: values at a point, over the product of its differences to the others; of infinity the last tap.
    points = [0, 5 / 8, -5 / 8, 3 / 2, -3 / 2]
    scales = [np.prod([point - other for other in points if other != point]) for point in points]
    rows = [np.array([1, point, point**2]) / scale for point, scale in zip(points, scales, strict=True)]
    matrix = np.array([*rows, [0, 0, 1]])
    expected = np.einsum("ir,ocrs,js->ijoc", matrix, weight.astype(np.float64), matrix)
    assert np.allclose(packed[:, :7].reshape(6, 6, 5, 7), expected, rtol=1e-6, atol=1e-7)
    assert not packed[:, 7:].any()
    assert layout.to_json()["kind"] != filter_layout(weight.shape, (0, 1, 2, 3)).to_json()["kind"]
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize(("outputs", "points"), [(2, [1, -1]), (4, [1 / 2, -1 / 2, 3 / 2, -3 / 2])])
def test_taps_with_a_stride_of_2_are_transformed_as_two_filterings(outputs: int, points: list[float]) -> None:
    weight = np.random.default_rng(0).standard_normal((5, 7, 3, 3)).astype(np.float32)
    layout = filter_layout(weight.shape, (0, 1, 2, 3), outputs, 2)
    packed, count = layout.pack(weight), 2 * outputs + 1
    assert packed.shape == layout.packed_shape(weight.shape) == (count**2 * 5, LINE_ELEMENTS)
    scales = [np.prod([point - other for other in points if other != point]) for point in points]
    outer = [np.array([1, 0, point]) / scale for point, scale in zip(points, scales, strict=True)]
    matrix = np.array([*outer, [0, 0, 1], *(np.array([0, 1, 0]) / scale for scale in scales)])
    expected = np.einsum("ir,ocrs,js->ijoc", matrix, weight.astype(np.float64), matrix)
    assert np.allclose(packed[:, :7].reshape(count, count, 5, 7), expected, rtol=1e-6, atol=1e-7)
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_blocks_are_sums_of_columns_that_are_divided_by_their_factors(n: int, half: int, panel: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = np.ldexp(rng.standard_normal((n, 2 * half)), rng.integers(-60, 60, (n, 1))).astype(np.float32)
    weight[rng.integers(n)] = 0
    layout = PackLayout(panel, blocks=True)
    packed, pairs = layout.pack(weight), -(-n // (2 * panel))
    assert packed.shape == layout.packed_shape(weight.shape) == (pairs * panel * (9 * half + 2),)
    assert packed.dtype == np.float32
    whole = packed[: 4 * pairs * half * panel].reshape(2 * pairs, 2 * half, panel)
    factors = packed[9 * pairs * half * panel :].reshape(2 * pairs, panel)
    sums = packed[4 * pairs * half * panel :][: 5 * pairs * half * panel].reshape(pairs, 5, half, panel)
    for column in range(2 * panel * pairs):
        own = weight[column] if column < n else np.zeros(2 * half, np.float32)
        index, lane = divmod(column, panel)
        assert (whole[index, :, lane] * factors[index, lane] == own).all()
        assert (factors[index, lane] == 0) == (not own.any())
        if own.any():
            assert 1 <= np.abs(own / factors[index, lane]).max() < 2
    for pair in range(pairs):
        left, right = (whole[2 * pair + side].astype(np.float64) for side in range(2))
        blocks = left[:half], right[:half], left[half:], right[half:]
        for number, signs in enumerate(strassen.RIGHTS[1:6]):
            total = sum(sign * block for sign, block in zip(signs, blocks, strict=True))
            assert (sums[pair, number] == np.float32(total)).all()
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_columns_that_are_no_numbers_are_zeros_with_a_factor_that_is_none() -> None:
    weight = np.ones((3, 4), np.float32)
    weight[1, 2] = np.inf
    packed = PackLayout(2, blocks=True).pack(weight)
    assert (packed[:8].reshape(4, 2) == [1, 0]).all()
    assert np.array_equal(packed[-4:], np.array([1, np.nan, 1, 0]), equal_nan=True)


@pytest.mark.parametrize(("group", "offset"), [(2, 0), (4, 0), (4, 128)])
def test_panels_of_matrices_hold_words_of_steps(group: int, offset: int) -> None:
    weight, layout = signed(10, 3, 2), replace(GROUPED, group=group, offset=offset)
    packed, head = layout.pack(weight), int(bool(offset))
    assert packed.shape == layout.packed_shape(weight.shape) == (4, -(-6 // group) + head, 4 * group)
    for o, c, r in np.ndindex(10, 3, 2):
        half, row = divmod(o, 5)
        step = 3 * r + c
        at = packed[2 * half + row // 4, head + step // group, row % 4 * group + step % group]
        assert at == weight[o, c, r]
    if offset:
        heads = np.ascontiguousarray(packed[:, 0]).view(np.int32).reshape(2, 8)[:, :5]
        assert (heads.ravel() == -128 * weight.sum(axis=(1, 2), dtype=np.int32)).all()


@pytest.mark.parametrize(("group", "offset"), [(2, 0), (4, 0), (4, 128)])
def test_rows_of_matrices_begin_with_what_an_offset_adds(group: int, offset: int) -> None:
    weight, layout = signed(10, 3, 2), replace(LINES, group=group, offset=offset)
    packed, head = layout.pack(weight), group if offset else 0
    assert packed.shape == layout.packed_shape(weight.shape) == (10, LINE_ELEMENTS * group)
    assert (packed[:, head : head + 6] == weight.transpose(0, 2, 1).reshape(10, 6)).all()
    assert not packed[:, head + 6 :].any()
    if offset:
        heads = np.ascontiguousarray(packed[:, :4]).view(np.int32).ravel()
        assert (heads == -128 * weight.sum(axis=(1, 2), dtype=np.int32)).all()


def test_matrices_come_back_from_json() -> None:
    for layout in (GROUPED, LINES, replace(GROUPED, group=4, offset=128), replace(LINES, group=2)):
        assert layout_from_json(layout.to_json()) == layout
