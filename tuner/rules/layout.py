"""Layouts: how arrays stand in memory for a library's kernels. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InvalidInput

LINE_ELEMENTS = 16
"""Elements of four bytes in a cache line."""


def row_major(array: NDArray[Any]) -> NDArray[Any]:
    """``array``, which has no gaps, with the strides of its shape: NumPy gives an array without elements strides of 0,
    and kernels check the strides they are given."""
    if array.size:
        return array
    strides = [array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def aligned(array: NDArray[Any], to: int = 64) -> NDArray[Any]:
    """A copy of ``array`` that starts on a cache line (NumPy's arrays start anywhere), without gaps."""
    raw = np.empty(array.nbytes + to, np.uint8)
    skip = -raw.ctypes.data % to
    copy = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Layout(Protocol):
    """How a constant tensor is rearranged once, ahead of all calls. Values are frozen, hashable and ordered."""

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
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

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, k = shape
        return (-(-n // self.panel), -(-k // self.group) + bool(self.offset), self.panel * self.group)

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
        further = {"group": self.group, "offset": self.offset}
        return {"kind": "panels", "panel": self.panel, **{name: value for name, value in further.items() if value > 1}}


@dataclass(frozen=True, slots=True, order=True)
class MatrixLayout:
    """A weight of any dims as matrices ``[rows, steps]``, for contractions of several axes.

    ``dims``: the sizes of the parts of each dim, in order (a dim of o = g * w elements may be two, g and w). ``batch``,
    ``rows`` and ``steps`` take those parts by their positions; each group is one flattened index. Packed is either
    ``[batch * panels, steps, panel]``, as PanelLayout has it, or, if ``panel`` is 1, ``[batch * rows, steps]`` with
    rows that are an odd number of cache lines apart: the rows of a tile fall on different sets of a cache.
    """

    dims: tuple[tuple[int, ...], ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    steps: tuple[int, ...]
    panel: int

    def _sizes(self) -> tuple[int, int, int]:
        parts = [size for dim in self.dims for size in dim]
        batch, rows, steps = (math.prod(parts[at] for at in group) for group in (self.batch, self.rows, self.steps))
        return batch, rows, steps

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        batch, rows, steps = self._sizes()
        if self.panel == 1:
            lines = -(-steps // LINE_ELEMENTS)
            return batch * rows, (lines | 1) * LINE_ELEMENTS
        return batch * -(-rows // self.panel), steps, self.panel

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: of the sizes in ``dims``, any dtype and strides. The result is contiguous."""
        batch, rows, steps = self._sizes()
        parts = array.reshape([size for dim in self.dims for size in dim])
        matrices = parts.transpose(*self.batch, *self.rows, *self.steps).reshape(batch, rows, steps)
        shape = self.packed_shape(array.shape)
        if self.panel == 1:
            lines = np.zeros(shape, array.dtype)
            lines[:, :steps] = matrices.reshape(batch * rows, steps)
            return lines
        padded = np.zeros((batch, shape[0] // max(batch, 1) * self.panel, steps), array.dtype)
        padded[:, :rows] = matrices
        return np.ascontiguousarray(padded.reshape(shape[0], self.panel, steps).transpose(0, 2, 1))

    def to_json(self) -> dict[str, Any]:
        groups = {"batch": list(self.batch), "rows": list(self.rows), "steps": list(self.steps)}
        return {"kind": "matrices", "dims": [list(dim) for dim in self.dims], **groups, "panel": self.panel}


def layout_from_json(data: Mapping[str, Any]) -> Layout:
    """Read what ``to_json`` of a layout wrote. Raises InvalidInput for a kind that this version does not know."""
    if data.get("kind") == "panels":
        return PanelLayout(int(data["panel"]), int(data.get("group", 1)), int(data.get("offset", 0)))
    if data.get("kind") == "matrices":
        batch, rows, steps = (tuple(map(int, data[group])) for group in ("batch", "rows", "steps"))
        dims = tuple(tuple(map(int, dim)) for dim in data["dims"])
        return MatrixLayout(dims, batch, rows, steps, int(data["panel"]))
    raise InvalidInput("packed_layouts", f"{data!r} is not known", "kind: panels, or matrices")
