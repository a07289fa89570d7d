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
    """A weight ``w[n, k]`` as panels ``[ceil(n / panel), k, panel]``, the last panel filled up with zeros.

    Element ``w[j, p]`` stands at ``[j // panel, p, j % panel]``: a micro-kernel that computes ``panel`` columns reads
    its operand as one contiguous stream.
    """

    panel: int

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, k = shape
        return (-(-n // self.panel), k, self.panel)

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: shape [n, k], any dtype and strides. The result is contiguous."""
        n, k = array.shape
        panels, _, panel = self.packed_shape(array.shape)
        padded = np.zeros((panels * panel, k), array.dtype)
        padded[:n] = array
        return np.ascontiguousarray(padded.reshape(panels, panel, k).transpose(0, 2, 1))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "panels", "panel": self.panel}


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
        return PanelLayout(int(data["panel"]))
    if data.get("kind") == "matrices":
        batch, rows, steps = (tuple(map(int, data[group])) for group in ("batch", "rows", "steps"))
        dims = tuple(tuple(map(int, dim)) for dim in data["dims"])
        return MatrixLayout(dims, batch, rows, steps, int(data["panel"]))
    raise InvalidInput("packed_layouts", f"{data!r} is not known", "kind: panels, or matrices")
