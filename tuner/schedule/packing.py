"""Arrays as their layouts have them in memory, by NumPy alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.dims import parse_dim
from tuner.schedule.filters import FILTERS
from tuner.schedule.layout import LINE_BYTES, CutLayout, Numbers, PackLayout
from tuner.schedule.strassen import SUMS


def row_major(array: NDArray[Any]) -> NDArray[Any]:
    """``array``, which has no gaps, with the strides of its shape: NumPy gives an array without elements strides of 0,
    and kernels check the strides they are given."""
    if array.size:
        return array
    strides = [array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def aligned(array: NDArray[Any], to: int = LINE_BYTES) -> NDArray[Any]:
    """A copy of ``array`` that starts on a cache line (NumPy's arrays start anywhere), without gaps."""
    raw = np.empty(array.nbytes + to, np.uint8)
    skip = -raw.ctypes.data % to
    copy = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _matrices(layout: PackLayout, array: NDArray[Any]) -> NDArray[Any]:
    """[batch, rows, steps]."""
    sizes = layout.sizes_of(array.shape)
    for numbers in layout.numbers:
        return _joined(numbers, array)[None]
    if layout.filter:
        taps, points = (
            array.transpose(layout.filter).astype(np.float64),
            np.array(FILTERS[layout.outputs, layout.stride]),
        )
        return np.asarray(np.einsum("ir,ocrs,js->ijoc", points, taps, points).reshape(sizes))
    parts = array.reshape([size for dim in layout.dims for size in dim] or array.shape)
    return parts.transpose(*layout.batch, *layout.rows, *layout.steps).reshape(sizes)


def _joined(of: Numbers, array: NDArray[Any]) -> NDArray[Any]:
    """[rows, steps / joined] of the dtype of ``array``; places past the last step are zero."""
    bits = np.dtype(f"uint{8 * array.itemsize}")
    joined = np.zeros((of.rows, -(-of.steps // of.joined)), bits)
    row, places, amount = np.arange(of.rows)[:, None], [parse_dim(text) for text in of.index], parse_dim(of.shift)
    for number in range(of.joined):
        at: Any = {"row": row, "step": np.arange(number, of.steps, of.joined)[None]}
        elements = array[tuple(place.evaluate(at) for place in places)]
        found = (elements >> np.asarray(amount.evaluate(at)).astype(array.dtype)) & array.dtype.type(15)
        joined[:, : found.shape[1]] |= found.astype(bits) << bits.type(4 * number)
    return joined.view(array.dtype)


def pack(layout: PackLayout, array: NDArray[Any]) -> NDArray[Any]:
    """``array``: any dtype and strides; int8 in groups of 4 with an offset. The result is contiguous."""
    matrices, shape = _matrices(layout, array), layout.packed_shape(array.shape)
    batch, rows, steps = matrices.shape
    if layout.blocks:
        return _in_blocks(layout, matrices[0])
    if layout.has_rows:
        lines, head = np.zeros(shape, array.dtype), layout.group if layout.offset else 0
        lines[:, head : head + steps] = matrices.reshape(batch * rows, steps)
        lines[:, :head] = _head(layout, matrices.reshape(batch * rows, steps))
        return lines
    groups = shape[1] - bool(layout.offset)
    padded = np.zeros((batch, shape[0] // max(batch, 1) * layout.panel, groups * layout.group), array.dtype)
    padded[:, :rows, :steps] = matrices
    words = padded.reshape(shape[0], layout.panel, groups, layout.group).transpose(0, 2, 1, 3)
    packed = np.ascontiguousarray(words).reshape(shape[0], groups, layout.panel * layout.group)
    if not layout.offset:
        return packed
    heads = _head(layout, padded.reshape(shape[0] * layout.panel, groups * layout.group))
    return np.concatenate([heads.reshape(shape[0], 1, layout.panel * layout.group), packed], axis=1)


def _in_blocks(layout: PackLayout, matrix: NDArray[Any]) -> NDArray[Any]:
    """``matrix`` [rows, steps] of float32, whose rows are the columns of a right operand."""
    packed, (rows, steps), panel = np.empty(layout.packed_shape(matrix.shape), matrix.dtype), matrix.shape, layout.panel
    pairs = -(-rows // (2 * panel))
    ends = np.cumsum([2 * pairs * steps * panel, len(SUMS) * pairs * (steps // 2) * panel])
    columns, sums, factors = (part.reshape(pairs, -1, panel) for part in np.split(packed, ends))
    # Pair after pair: in float64 all of a large weight would take far more memory than the weight.
    for pair in range(pairs):
        own = matrix[2 * pair * panel :][: 2 * panel]
        factors[pair].reshape(-1)[...], scaled = _scaled(own, 2 * panel)
        # By halves of the columns and of the steps, each step with its columns.
        blocks = scaled.reshape(2, panel, 2, steps // 2).transpose(0, 2, 3, 1)
        columns[pair] = blocks.reshape(-1, panel)
        # In the order 11, 12, 21, 22.
        sums[pair] = np.tensordot(np.array(SUMS), blocks.swapaxes(0, 1).reshape(len(SUMS[0]), -1, panel), 1).reshape(
            -1, panel
        )
    return packed


def _scaled(columns: NDArray[Any], width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The factors of so many columns (rows here), zeros behind the last one, and the columns divided by them."""
    largest = np.abs(columns).max(axis=1)
    is_finite = np.isfinite(largest)
    # The mantissa of frexp is 0.5 to 1.
    exponents = np.where(is_finite, np.frexp(largest)[1] - 1, 0).clip(-126, 126)
    factors, scaled = np.zeros(width), np.zeros((width, columns.shape[1]))
    factors[: len(columns)] = np.where(is_finite, np.where(largest == 0.0, 0.0, np.ldexp(1.0, exponents)), np.nan)
    # Zeros of a column that has no factor: others are not to be added to what is no number.
    numbers = np.where(is_finite[:, None], columns, 0).astype(np.float64)
    scaled[: len(columns)] = np.ldexp(numbers, -exponents[:, None])
    return factors, scaled


def _head(layout: PackLayout, rows: NDArray[Any]) -> NDArray[Any]:
    """[rows, group] bytes: for each row what the offset adds to its sums, negated (int32); nothing without one."""
    if not layout.offset:
        return rows[:, :0]
    totals: NDArray[Any] = (-layout.offset * rows.sum(axis=1, dtype=np.int32)).astype(np.int32)
    return totals[:, None].view(rows.dtype)


def pack_parts(layout: CutLayout, array: NDArray[Any]) -> NDArray[Any]:
    """``array``: of ``sizes``, any dtype and strides. The result is contiguous."""
    packed = np.zeros(layout.packed_shape(array.shape), array.dtype)
    for number, (taken, its) in enumerate(layout.parts):
        part, first = array, layout.first(number)
        for dim, *indices in taken:
            part = part.take(np.arange(*indices), axis=dim)
        elements = pack(its, part).ravel()
        packed[first : first + elements.size] = elements
    return packed
