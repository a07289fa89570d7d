"""Layouts: how arrays stand in memory for a library's kernels. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InvalidInput


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


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """A weight ``w[n, k]`` as panels ``[ceil(n / panel), k, panel]``, the last panel filled up with zeros.

    Element ``w[j, p]`` stands at ``[j // panel, p, j % panel]``: a micro-kernel that computes ``panel`` columns reads
    its operand as one contiguous stream.
    """

    panel: int

    def packed_shape(self, n: int, k: int) -> tuple[int, int, int]:
        return (-(-n // self.panel), k, self.panel)

    def pack(self, weight: NDArray[Any]) -> NDArray[np.float32]:
        """``weight``: float32 of shape [n, k], any strides. The result is contiguous."""
        if weight.ndim != 2 or weight.dtype != np.float32:
            raise InvalidInput("w", f"{weight.dtype} of shape {weight.shape}", "float32 of shape [n, k]")
        n, k = weight.shape
        panels, _, panel = self.packed_shape(n, k)
        padded = np.zeros((panels * panel, k), np.float32)
        padded[:n] = weight
        return np.ascontiguousarray(padded.reshape(panels, panel, k).transpose(0, 2, 1))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "panels", "panel": self.panel}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PanelLayout:
        if data.get("kind") != "panels":
            raise InvalidInput("packed_layout", f"{data!r} is not known", "panels")
        return PanelLayout(int(data["panel"]))
