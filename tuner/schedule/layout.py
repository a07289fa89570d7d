"""Layouts: how arrays stand in memory for a library's kernels. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InvalidInput, shown
from tuner.program.dims import DimExpr

LINE_BYTES = 64
LINE_ELEMENTS = LINE_BYTES // 4
MAX_ELEMENTS = 2**48  # No memory holds more.

FILTER = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
"""G of F(2, 3): what is multiplied for two outputs of three taps."""

Size = TypeVar("Size", int, DimExpr)


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


class Layout(Protocol):
    """How a constant tensor is rearranged once, ahead of all calls. Values are frozen, hashable and ordered."""

    def packed_shape(self, shape: Sequence[Size]) -> tuple[Size | int, ...]:
        """The shape of the packed form of a tensor of ``shape``."""

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """The packed form, contiguous, of the same dtype."""

    def to_json(self) -> dict[str, Any]:
        """What ``layout_from_json`` reads; ``kind`` names the layout."""


@dataclass(frozen=True, slots=True, order=True)
class PanelLayout:
    """A weight ``w[n, k]`` as panels ``[ceil(n / panel), ceil(k / group), panel * group]``, filled up with zeros.

    Element ``w[j, p]`` stands at ``[j // panel, p // group, j % panel * group + p % group]``: a micro-kernel that
    computes ``panel`` columns reads its operand as one contiguous stream, ``group`` steps of k at a time. With an
    ``offset`` each panel has one step more in front: what that offset, added to all elements of the other operand, adds
    to each column, negated (int32).
    """

    panel: int
    group: int = 1
    offset: int = 0

    def packed_shape(self, shape: Sequence[Size]) -> tuple[Size | int, ...]:
        n, k = shape
        panels, steps = (n + self.panel - 1) // self.panel, (k + self.group - 1) // self.group
        return panels, steps + int(bool(self.offset)), self.panel * self.group

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: shape [n, k], any dtype and strides; int8 in groups of 4 with an offset. The result is
        contiguous."""
        n, k = array.shape
        panels, groups = -(-n // self.panel), -(-k // self.group)
        padded = np.zeros((panels * self.panel, groups * self.group), array.dtype)
        padded[:n, :k] = array
        words = padded.reshape(panels, self.panel, groups, self.group).transpose(0, 2, 1, 3)
        packed = np.ascontiguousarray(words).reshape(panels, groups, self.panel * self.group)
        if not self.offset:
            return packed
        totals = -self.offset * padded.sum(axis=1, dtype=np.int32)
        head = totals.astype(np.int32).view(array.dtype).reshape(panels, 1, self.panel * self.group)
        return np.concatenate([head, packed], axis=1)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "panels", "panel": self.panel, **_words_json(self.group, self.offset)}


@dataclass(frozen=True, slots=True, order=True)
class MatrixLayout:
    """A weight of any dims as matrices ``[rows, steps]``, for contractions of several axes.

    ``dims``: the sizes of the parts of each dim, in order (a dim of o = g * w elements may be two, g and w). ``batch``,
    ``rows`` and ``steps`` take those parts by their positions; each group is one flattened index. Packed is either
    ``[batch * panels, steps, panel]``, as PanelLayout has it, or, if ``panel`` is 1, ``[batch * rows, steps]`` with
    rows that are an odd number of cache lines apart: the rows of a tile fall on different sets of a cache.

    ``group`` and ``offset`` are those of PanelLayout. Each row of the second form has what compensates the offset in
    front of it.
    """

    dims: tuple[tuple[int, ...], ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    steps: tuple[int, ...]
    panel: int
    group: int = 1
    offset: int = 0

    def _sizes(self) -> tuple[int, int, int]:
        parts = [size for dim in self.dims for size in dim]
        batch, rows, steps = (math.prod(parts[at] for at in group) for group in (self.batch, self.rows, self.steps))
        return batch, rows, steps

    def packed_shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        batch, rows, steps = self._sizes()
        words = -(-steps // self.group) + bool(self.offset)
        if self.panel == 1:
            return batch * rows, _row_elements(words) * self.group
        return batch * -(-rows // self.panel), words, self.panel * self.group

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: of the sizes in ``dims``, any dtype and strides. The result is contiguous."""
        batch, rows, steps = self._sizes()
        parts = array.reshape([size for dim in self.dims for size in dim])
        matrices = parts.transpose(*self.batch, *self.rows, *self.steps).reshape(batch, rows, steps)
        shape = self.packed_shape(array.shape)
        if self.panel == 1:
            lines, head = np.zeros(shape, array.dtype), self.group if self.offset else 0
            lines[:, head : head + steps] = matrices.reshape(batch * rows, steps)
            lines[:, :head] = self._head(matrices.reshape(batch * rows, steps))
            return lines
        groups = -(-steps // self.group)
        padded = np.zeros((batch, shape[0] // max(batch, 1) * self.panel, groups * self.group), array.dtype)
        padded[:, :rows, :steps] = matrices
        words = padded.reshape(shape[0], self.panel, groups, self.group).transpose(0, 2, 1, 3)
        packed = np.ascontiguousarray(words).reshape(shape[0], groups, self.panel * self.group)
        if not self.offset:
            return packed
        head_of = self._head(padded.reshape(-1, groups * self.group)).reshape(shape[0], 1, self.panel * self.group)
        return np.concatenate([head_of, packed], axis=1)

    def _head(self, rows: NDArray[Any]) -> NDArray[Any]:
        """[rows, group] bytes: for each row what the offset adds to its sums, negated (int32); nothing without one."""
        if not self.offset:
            return rows[:, :0]
        totals: NDArray[Any] = (-self.offset * rows.sum(axis=1, dtype=np.int32)).astype(np.int32)
        return totals[:, None].view(rows.dtype)

    def to_json(self) -> dict[str, Any]:
        groups = {"batch": list(self.batch), "rows": list(self.rows), "steps": list(self.steps)}
        further = {"panel": self.panel, **_words_json(self.group, self.offset)}
        return {"kind": "matrices", "dims": [list(dim) for dim in self.dims], **groups, **further}


@dataclass(frozen=True, slots=True, order=True)
class CutLayout:
    """A weight cut into parts, each of which is packed by a layout of its own, one after the other in one dim.

    Of part ``i``, dim ``dim`` holds the indices ``range(*taken)`` of the weight for each ``(dim, *taken)`` of
    ``parts[i][0]``; all others are whole. Parts start on cache lines.
    """

    parts: tuple[tuple[tuple[tuple[int, int, int, int], ...], MatrixLayout], ...]
    sizes: tuple[int, ...]
    """Of the weight."""

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a part as it is packed."""
        taken, layout = self.parts[number]
        sizes = list(self.sizes)
        for dim, *indices in taken:
            sizes[dim] = len(range(*indices))
        return layout.packed_shape(sizes)

    def first(self, number: int) -> int:
        """The element where a part begins."""
        return sum(self._room(before) for before in range(number))

    def _room(self, number: int) -> int:
        """Elements of a part, as many as fill cache lines even if each is one byte."""
        return -(-math.prod(self.shape(number)) // LINE_BYTES) * LINE_BYTES

    def packed_shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        # Never empty: there is no pointer to a part of nothing.
        return (max(self.first(len(self.parts)), 1),)

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: of ``sizes``, any dtype and strides. The result is contiguous."""
        packed = np.zeros(self.packed_shape(array.shape), array.dtype)
        for number, (taken, layout) in enumerate(self.parts):
            part, first = array, self.first(number)
            for dim, *indices in taken:
                part = part.take(np.arange(*indices), axis=dim)
            elements = layout.pack(part).ravel()
            packed[first : first + elements.size] = elements
        return packed

    def to_json(self) -> dict[str, Any]:
        parts = [{"taken": [list(each) for each in taken], "layout": layout.to_json()} for taken, layout in self.parts]
        return {"kind": "cut", "parts": parts, "sizes": list(self.sizes)}


@dataclass(frozen=True, slots=True, order=True)
class WinogradLayout:
    """Taps of a convolution, transformed for minimal filtering: ``[16 * kernels, channels]``, rows as those of a
    MatrixLayout of panels of 1.

    ``sizes`` of the weight; ``order``: its dims that are kernels, channels, and the taps down and across, 3 of each.
    Row ``p * kernels + o`` is element ``p`` (down * 4 + across) of ``G g G^T`` of the taps ``g`` of kernel ``o`` (Lavin
    and Gray, CVPR 2016, section 4.1), computed in float64.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def packed_shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        kernels, channels, *_ = (self.sizes[dim] for dim in self.order)
        return len(FILTER) ** 2 * kernels, _row_elements(channels)

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: of ``sizes``, float32, any strides. The result is contiguous."""
        taps, points = array.transpose(self.order).astype(np.float64), np.array(FILTER)
        rows = np.einsum("ir,ocrs,js->ijoc", points, taps, points)
        packed = np.zeros(self.packed_shape(array.shape), array.dtype)
        packed[:, : taps.shape[1]] = rows.reshape(len(packed), taps.shape[1])
        return packed

    def to_json(self) -> dict[str, Any]:
        return {"kind": "winograd", "sizes": list(self.sizes), "order": list(self.order)}


def _row_elements(elements: int) -> int:
    """How far apart rows of so many elements are: an odd number of cache lines."""
    return (-(-elements // LINE_ELEMENTS) | 1) * LINE_ELEMENTS


def _words_json(group: int, offset: int) -> dict[str, int]:
    """What of a layout's words is not as usual."""
    usual = {"group": (group, 1), "offset": (offset, 0)}
    return {name: value for name, (value, default) in usual.items() if value != default}


def layout_from_json(data: Mapping[str, Any]) -> Layout:
    """Read what ``to_json`` of a layout wrote. Raises InvalidInput for a kind that this version does not know, and for
    numbers that no layout has."""
    if data.get("kind") == "panels":
        return PanelLayout(*_words(data))
    if data.get("kind") == "matrices":
        dims = tuple(_sizes(dim) for dim in data["dims"])
        parts = sum(map(len, dims))
        batch, rows, steps = (_sizes(data[group], parts - 1) for group in ("batch", "rows", "steps"))
        return MatrixLayout(dims, batch, rows, steps, *_words(data))
    if data.get("kind") == "cut":
        sizes = _sizes(data["sizes"])
        return CutLayout(tuple(_part_from_json(part, sizes) for part in data["parts"]), sizes)
    if data.get("kind") == "winograd":
        sizes = _sizes(data["sizes"])
        return WinogradLayout(sizes, _sizes(data["order"], len(sizes) - 1))
    raise InvalidInput("packed_layouts", f"{shown(data)} is not known", "kind: panels, matrices, cut, or winograd")


def _part_from_json(
    data: Mapping[str, Any], sizes: Sequence[int]
) -> tuple[tuple[tuple[int, int, int, int], ...], MatrixLayout]:
    layout = layout_from_json(data["layout"])
    if not isinstance(layout, MatrixLayout):
        raise InvalidInput("packed_layouts", f"{shown(data)} is not known", "parts of kind: matrices")
    return tuple(_taken(each, sizes) for each in data["taken"]), layout


def _taken(data: Sequence[Any], sizes: Sequence[int]) -> tuple[int, int, int, int]:
    """A dim of a weight of ``sizes``, and the first, the end and the step of its indices."""
    dim, first, end, step = data
    _sizes([dim, *map(abs, data)])
    indices = range(first, end, step)
    if dim >= len(sizes) or any(not 0 <= index < sizes[dim] for index in (*indices[:1], *indices[-1:])):
        raise InvalidInput("packed_layouts", f"{shown(data)} are not indices of {shown(sizes)}", "those of one dim")
    return dim, first, end, step


def _words(data: Mapping[str, Any]) -> tuple[int, int, int]:
    """Panel, group and offset."""
    offset = data.get("offset", 0)
    panel, group, _ = _sizes([data["panel"], data.get("group", 1), abs(offset)])
    if not panel or not group:
        raise InvalidInput("packed_layouts", f"panels of {panel} in groups of {group}", "1 or more")
    return panel, group, offset


def _sizes(data: Sequence[Any], most: int = MAX_ELEMENTS) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size <= most for size in data):
        raise InvalidInput("packed_layouts", f"{shown(data)} are not sizes", f"integers from 0 to {most}")
    return tuple(data)
