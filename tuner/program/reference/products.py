"""Sums of products of arrays over named axes, by matrix products wherever two arrays share what is summed over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Factor = tuple[Array, tuple[str, ...]]
"""An array and the names of its axes."""
EXACT = 2**53
"""Integers below it are exact in float64, which BLAS multiplies much faster than integers."""


def sum_of_products(factors: Sequence[Factor], kept: Sequence[str]) -> Array:
    """The product of all factors summed over every axis that is not in ``kept``; an array over ``kept``.

    Integers give int64 that wraps around.
    """
    if np.issubdtype(factors[0][0].dtype, np.integer):
        return _integers(factors, kept)
    work = _merged(list(factors))
    while len(work) > 1:
        first, second = _cheapest(work, kept)
        rest = [factor for index, factor in enumerate(work) if index not in (first, second)]
        needed = {*kept, *itertools.chain.from_iterable(axes for _, axes in rest)}
        work = _merged([_product(work[first], work[second], needed), *rest])
    array, axes = _reduced(work[0], set(kept))
    # Every kept axis is an axis of some factor, or has one value in the result.
    present = [axis for axis in kept if axis in axes]
    array = array.transpose([axes.index(axis) for axis in present])
    return array.reshape([array.shape[present.index(axis)] if axis in axes else 1 for axis in kept])


def _integers(factors: Sequence[Factor], kept: Sequence[str]) -> Array:
    sizes = _sizes(factors)
    terms = math.prod(size for axis, size in sizes.items() if axis not in kept)
    largest = math.prod(max(-int(array.min()), int(array.max())) if array.size else 0 for array, _ in factors)
    kind = np.float64 if terms * largest < EXACT else np.int64
    converted = [(array.astype(kind), axes) for array, axes in factors]
    if kind is np.float64:
        return sum_of_products(converted, kept).astype(np.int64)
    # Without BLAS, and without loss: NumPy's integer products wrap around.
    letters = {axis: chr(ord("a") + index) for index, axis in enumerate(dict.fromkeys([*kept, *sizes]))}
    terms_text = ",".join("".join(letters[axis] for axis in axes) for _, axes in converted)
    present = [axis for axis in kept if axis in sizes]
    result = np.einsum(f"{terms_text}->{''.join(letters[axis] for axis in present)}", *(a for a, _ in converted))
    return np.asarray(result).reshape([sizes.get(axis, 1) for axis in kept])


def _sizes(factors: Sequence[Factor]) -> dict[str, int]:
    return {axis: size for array, axes in factors for axis, size in zip(axes, array.shape, strict=True)}


def _merged(factors: list[Factor]) -> list[Factor]:
    """Factors whose axes another one has, too, multiplied into it: that makes nothing larger."""
    merged: list[Factor] = []
    for array, axes in sorted(factors, key=lambda factor: -len(factor[1])):
        for index, (other, others) in enumerate(merged):
            if set(axes) <= set(others):
                present = [axis for axis in others if axis in axes]
                turned = array.transpose([axes.index(axis) for axis in present])
                merged[index] = (other * turned.reshape([_size(array, axes, axis) for axis in others]), others)
                break
        else:
            merged.append((array, axes))
    return merged


def _size(array: Array, axes: tuple[str, ...], axis: str) -> int:
    return array.shape[axes.index(axis)] if axis in axes else 1


def _cheapest(factors: Sequence[Factor], kept: Sequence[str]) -> tuple[int, int]:
    """The pair whose product is the smallest."""

    def volume(pair: tuple[int, int]) -> int:
        rest = [axes for index, (_, axes) in enumerate(factors) if index not in pair]
        needed = {*kept, *itertools.chain.from_iterable(rest)}
        sizes = _sizes([factors[index] for index in pair])
        return math.prod(size for axis, size in sizes.items() if axis in needed)

    return min(itertools.combinations(range(len(factors)), 2), key=volume)


def _reduced(factor: Factor, needed: Collection[str]) -> Factor:
    """Summed over the axes that nobody needs."""
    array, axes = factor
    alone = tuple(index for index, axis in enumerate(axes) if axis not in needed)
    return (array.sum(axis=alone), tuple(axis for axis in axes if axis in needed)) if alone else factor


def _product(left: Factor, right: Factor, needed: Collection[str]) -> Factor:
    """Two factors multiplied, and summed over the axes that nobody needs: matrix products over a batch."""
    (a, a_axes), (b, b_axes) = _reduced(left, {*needed, *right[1]}), _reduced(right, {*needed, *left[1]})
    sizes = _sizes([(a, a_axes), (b, b_axes)])
    batch = [axis for axis in a_axes if axis in b_axes and axis in needed]
    shared = [axis for axis in a_axes if axis in b_axes and axis not in needed]
    rows = [axis for axis in a_axes if axis not in b_axes]
    columns = [axis for axis in b_axes if axis not in a_axes]

    def matrices(array: Array, axes: tuple[str, ...], *groups: list[str]) -> Array:
        turned = array.transpose([axes.index(axis) for axis in itertools.chain(*groups)])
        return turned.reshape([_volume(sizes, group) for group in groups if group is not batch or batch])

    product = np.matmul(matrices(a, a_axes, batch, rows, shared), matrices(b, b_axes, batch, shared, columns))
    axes = (*batch, *rows, *columns)
    return product.reshape([sizes[axis] for axis in axes]), axes


def _volume(sizes: Mapping[str, int], axes: Sequence[str]) -> int:
    return math.prod(sizes[axis] for axis in axes)
