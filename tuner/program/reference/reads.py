"""Elements of a tensor at index expressions, over a box of axis values: strided views where indices are affine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.dims import DimExpr
from tuner.program.reference.blocks import Box, lengths

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Affine:
    """An index that is a sum of axes times constants."""

    coefficients: tuple[tuple[str, int], ...]
    constant: int

    @staticmethod
    def of(dim: DimExpr | None) -> Affine | None:
        """``dim``, over axes alone, if it is affine."""
        if dim is None or not all(len(atoms) <= 1 and all(isinstance(a, str) for a in atoms) for atoms, _ in dim.terms):
            return None
        terms = [(str(atoms[0]), factor) for atoms, factor in dim.terms if atoms]
        return Affine(tuple(terms), sum(factor for atoms, factor in dim.terms if not atoms))

    def first(self, box: Box) -> int:
        """Its value in the first corner of the box."""
        return self.constant + sum(factor * box[axis][0] for axis, factor in self.coefficients)

    def span(self, box: Box) -> tuple[int, int]:
        """The least and the largest value."""
        reach = [factor * (box[axis][1] - 1 - box[axis][0]) for axis, factor in self.coefficients]
        first = self.first(box)
        return first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0)

    def values(self, box: Box, order: Sequence[str]) -> Array:
        """An array over ``order``, with 1 in place of the axes that do not occur."""
        total = np.full([1] * len(order), self.constant, np.int64)
        for axis, factor in self.coefficients:
            total = total + factor * axis_values(axis, box, order)
        return total


Index = Affine | Array
"""An array of indices is over all axes of the order, with 1 in place of those that do not occur."""


def axis_values(axis: str, box: Box, order: Sequence[str]) -> Array:
    """The values of an axis as an array over ``order``."""
    shape = [-1 if name == axis else 1 for name in order]
    return np.arange(*box[axis], dtype=np.int64).reshape(shape)


def read(
    array: Array, origin: Sequence[int], indices: Sequence[Index], box: Box, order: Sequence[str], fill: float
) -> Array:
    """Elements of ``array``, whose first one has the indices ``origin``, over ``box``: an array over ``order``.

    ``fill`` is read outside of it. The result may be a view, and has 1 in place of axes that do not occur.
    """
    spans = [
        index.span(box) if isinstance(index, Affine) else (int(index.min()), int(index.max())) for index in indices
    ]
    region = _region(array, [(low - at, high - at) for (low, high), at in zip(spans, origin, strict=True)], fill)
    lows = [low for low, _ in spans]
    if _separable(indices, order):
        return _strided(region, lows, indices, box, order)
    places = [index.values(box, order) if isinstance(index, Affine) else index for index in indices]
    return np.asarray(region[tuple(place - low for place, low in zip(places, lows, strict=True))])


def _region(array: Array, spans: Sequence[tuple[int, int]], fill: float) -> Array:
    """``array[low : high + 1, ...]``, with ``fill`` where that is outside."""
    inside = tuple(
        slice(min(max(low, 0), size), max(min(high + 1, size), 0))
        for (low, high), size in zip(spans, array.shape, strict=True)
    )
    shape = tuple(high + 1 - low for low, high in spans)
    part = array[inside]
    if part.shape == shape:
        return part
    region = np.full(shape, fill, array.dtype)
    into = (
        slice(part.start - low, part.start - low + max(part.stop - part.start, 0))
        for part, (low, _) in zip(inside, spans, strict=True)
    )
    region[tuple(into)] = part
    return region


def _axes_of(index: Index, order: Sequence[str]) -> list[str]:
    if isinstance(index, Affine):
        return [axis for axis, _ in index.coefficients]
    return [axis for axis, size in zip(order, index.shape, strict=True) if size > 1]


def _separable(indices: Sequence[Index], order: Sequence[str]) -> bool:
    """Whether no axis of an array of indices occurs in another index."""
    every = [axis for index in indices for axis in set(_axes_of(index, order))]
    return all(
        every.count(a) == 1 for index in indices if not isinstance(index, Affine) for a in _axes_of(index, order)
    )


def _strided(region: Array, lows: Sequence[int], indices: Sequence[Index], box: Box, order: Sequence[str]) -> Array:
    """Arrays of indices are looked up dim by dim; what is left is a view."""
    labels: list[list[Any]] = [[index] for index in indices]
    for position in reversed(range(len(indices))):
        index = indices[position]
        if not isinstance(index, Affine):
            axes = _axes_of(index, order)
            places = (index - lows[position]).reshape(lengths(box, axes))
            region = region.take(places, axis=position)
            labels[position] = list(axes)
    starts: list[slice] = []
    strides = dict.fromkeys(order, 0)
    dims = [(label, position) for position, group in enumerate(labels) for label in group]
    for (label, position), stride in zip(dims, region.strides, strict=True):
        if isinstance(label, Affine):
            starts.append(slice(label.first(box) - lows[position], None))
            for axis, factor in label.coefficients:
                strides[axis] += factor * stride
        else:
            starts.append(slice(None))
            strides[label] += stride
    used = {axis for index in indices for axis in _axes_of(index, order)}
    shape = [box[axis][1] - box[axis][0] if axis in used else 1 for axis in order]
    return np.lib.stride_tricks.as_strided(
        region[tuple(starts)], shape, [strides[axis] for axis in order], writeable=False
    )
