"""Views: the axes of a tensor that make up each dim that a program takes."""

from __future__ import annotations

from collections.abc import Sequence

from shapewright.models.graph import ONE, Shape
from shapewright.models.lifted import View
from tuner.program.language.dims import DimExpr


def product(dims: Sequence[DimExpr]) -> DimExpr:
    total = ONE
    for dim in dims:
        total = total * dim
    return total


def each(rank: int) -> View:
    """Every axis by itself."""
    return tuple((axis,) for axis in range(rank))


def grouped(shape: Shape, dims: Shape) -> View | None:
    """The axes of ``shape`` that, joined in their order, have ``dims``; None where they do not part so."""
    groups: list[tuple[int, ...]] = []
    axis = 0
    for dim in dims:
        first, size = axis, ONE
        while size != dim:
            if axis == len(shape):
                return None
            size, axis = size * shape[axis], axis + 1
        groups.append(tuple(range(first, axis)))
    rest = range(axis, len(shape))
    return tuple(groups) if all(shape[each] == ONE for each in rest) else None


def broadcast(shape: Shape, whole: Shape, view: View) -> tuple[View, tuple[int, ...]] | None:
    """How a tensor that is broadcast to ``whole`` is read along the dims that ``view`` makes of ``whole``.

    Its own view, and the dims that it has; None where it has only a part of the axes of one.
    """
    if shape == whole:
        # Also along axes of size 1: what is a residual at other sizes is one at this.
        return view, tuple(range(len(view)))
    offset = len(whole) - len(shape)
    has = {axis + offset for axis, size in enumerate(shape) if size != ONE}
    if offset < 0 or any(shape[axis - offset] != whole[axis] for axis in has):
        return None
    groups, dims = [], []
    for dim, group in enumerate(view):
        real = {axis for axis in group if whole[axis] != ONE}
        if not real & has:
            continue
        if not real <= has:
            return None
        groups.append(tuple(axis - offset for axis in group if axis >= offset))
        dims.append(dim)
    return tuple(groups), tuple(dims)
