"""Parts of a tensor, and where their elements lie in what they are taken of: heads side by side in one product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shapewright.models.graph import ONE, Graph, Node, Shape
from shapewright.models.views import product

Sizes = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Index:
    """A sum of axes of a value, each times a positive constant, and a constant."""

    factors: Mapping[int, int]
    constant: int = 0

    def times(self, stride: int) -> Index:
        return Index({axis: factor * stride for axis, factor in self.factors.items()}, self.constant * stride)

    def plus(self, other: Index) -> Index:
        axes = dict.fromkeys((*self.factors, *other.factors))
        factors = {axis: self.factors.get(axis, 0) + other.factors.get(axis, 0) for axis in axes}
        return Index(factors, self.constant + other.constant)

    def parted(self, size: int) -> tuple[Index, Index]:
        """``outer * size + inner``: whole terms are in either."""
        outer = {axis: factor // size for axis, factor in self.factors.items() if factor % size == 0}
        inner = {axis: factor for axis, factor in self.factors.items() if factor % size}
        quotient, rest = divmod(self.constant, size)
        return Index(outer, quotient), Index(inner, rest)

    def divided(self, size: int, sizes: Sizes) -> tuple[Index, Index] | None:
        """Quotient and remainder by ``size``, for axes of ``sizes``; None where they are no such sums."""
        outer, inner = self.parted(size)
        most = inner.constant
        for axis, factor in inner.factors.items():
            extent = sizes[axis]
            if extent is None:
                return None
            most += factor * max(extent - 1, 0)
        return (outer, inner) if most < size else None


@dataclass(frozen=True, slots=True)
class Placed:
    """A node that a value is a part of, and by axis of the node where in it an element of the value lies."""

    node: Node
    indices: tuple[Index, ...]


def part(axis: int, start: int, keep: bool = True) -> Mapping[str, int | bool]:
    """Attributes of a part: from ``start`` on along ``axis``; of one element, the axis left out, without ``keep``."""
    return {"axis": axis, "start": start, "keep": keep}


def part_from(shape: Shape | None, axis: Any, start: Any, *, keep: bool = True) -> Mapping[str, int | bool]:
    """Attributes of the part of a tensor of ``shape`` from ``start`` on, from the end where that is negative; nothing
    where it is not known which part it is."""
    if shape is None or type(axis) is not int or type(start) is not int or not -len(shape) <= axis < len(shape):
        return {}
    axis %= len(shape)
    size = shape[axis].constant
    if start < 0:
        if size is None:
            return {}
        start = max(start + size, 0)
    return part(axis, start, keep) if size is None or start < size else {}


def places(graph: Graph, value: Node, *, of_parts: bool = True) -> list[Placed]:
    """The nodes that a value is a part of, what was computed first in front; nothing for what is no part, but for what
    it is another view of without ``of_parts``.

    Parts are of constant size: what is taken of a cache grows, and is small beside it.
    """
    sizes = [dim.constant for dim in value.shape or ()]
    found: list[Placed] = []
    place, is_part = Placed(value, tuple(Index({axis: 1}) for axis in range(len(sizes)))), not of_parts
    while (before := _before(graph, place, sizes)) is not None:
        is_part |= place.node.op == "part"
        place = before
        if is_part:
            found.insert(0, place)
    return found


def _before(graph: Graph, place: Placed, sizes: Sizes) -> Placed | None:
    """The same elements in what a view looks at."""
    node, indices = place.node, place.indices
    source = graph[node.sources[0]] if node.sources else node
    if source.shape is None or node.shape is None:
        return None
    if node.op == "identity":
        return Placed(source, indices)
    if node.op == "permute":
        by_axis = dict(zip(node.attrs["order"], indices, strict=True))
        return Placed(source, tuple(by_axis[axis] for axis in range(len(indices))))
    found = None
    if node.op == "reshape":
        found = _reshaped(source.shape, node.shape, indices, sizes)
    elif node.op == "part" and node.attrs:
        found = _parted(source.shape, node, indices)
    return None if found is None else Placed(source, found)


def _parted(before: Shape, node: Node, indices: tuple[Index, ...]) -> tuple[Index, ...] | None:
    axis, start, keep = (node.attrs[name] for name in ("axis", "start", "keep"))
    assert node.shape is not None
    if before[axis].constant is None or (keep and node.shape[axis].constant is None):
        return None
    own = Index(indices[axis].factors if keep else {}, (indices[axis].constant if keep else 0) + start)
    return (*indices[:axis], own, *indices[axis + keep :])


def _reshaped(before: Shape, after: Shape, indices: Sequence[Index], sizes: Sizes) -> tuple[Index, ...] | None:
    """Indices of ``before`` for those of ``after``, which has the same elements in the same order."""
    found: list[Index] = []
    for first, last in _groups(before, after):
        own = None if first is None else _regrouped(before[first], after[last], indices[last], sizes)
        if own is None:
            return None
        found += own
    return tuple(found)


def _regrouped(before: Shape, after: Shape, indices: Sequence[Index], sizes: Sizes) -> list[Index] | None:
    """The same for axes that make up the same size."""
    if len(before) == len(after) == 1:
        return list(indices)
    whole = Index({})
    for place, index in enumerate(indices):
        stride = product(after[place + 1 :]).constant
        if after[place] != ONE:
            if stride is None:
                return None
            whole = whole.plus(index.times(stride))
    found = [Index({})] * len(before)
    first, *others = [axis for axis, dim in enumerate(before) if dim != ONE] or [0]
    for axis in reversed(others):
        size = before[axis].constant
        parts = whole.divided(size, sizes) if size else None
        if parts is None:
            return None
        whole, found[axis] = parts
    found[first] = whole
    return found


def _groups(before: Shape, after: Shape) -> Iterator[tuple[slice | None, slice]]:
    """Neighbouring axes that become neighbouring axes of the same size, as few as can be; None where there are none."""
    i = j = 0
    while i < len(before) and j < len(after):
        ends = (
            (p, q)
            for p in range(i + 1, len(before) + 1)
            for q in range(j + 1, len(after) + 1)
            if product(before[i:p]) == product(after[j:q])
        )
        p, q = min(ends, key=sum, default=(0, 0))
        if not p:
            yield None, slice(j, q)
            return
        yield slice(i, p), slice(j, q)
        i, j = p, q
    if any(dim != ONE for dim in (*before[i:], *after[j:])):
        yield None, slice(j, j)
    elif i < len(before):
        # Axes of size 1 at the end.
        yield slice(i, len(before)), slice(j, j)
