"""Heads that lie side by side in a wider tensor, such as the product that gives queries, keys and values at once.

They are read from there: ``qkv[b, i, h + 24, d]`` in place of a copy of what would be ``v[b, h, i, d]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shapewright.models.graph import ONE, Graph, Node, Shape
from shapewright.models.lifted import View
from shapewright.models.parts import Index, Placed, places
from shapewright.models.views import product
from tuner.program.language.dims import DimExpr

ELEMENTS = "dc"
"""Axes of the elements of a head: of queries and keys, and of values that are of another width."""
OF_HEADS = f"hg{ELEMENTS}"
"""Axes that may lie side by side: heads of queries, those of keys that several share, elements of a head."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Where a value of heads lies: in ``node``, whose axes ``view`` joins, the last of which has ``split`` elements of
    a head in a row, 0 where it has one head alone. ``shape``: what comes of it; ``read``: the index of each dim."""

    node: Node
    view: View
    split: int
    shape: Shape
    read: tuple[str, ...]


def heads_in(graph: Graph, value: Node, axes: str, share: str = "h", *, of_parts: bool = True) -> Heads | None:
    """The wider tensor that a value of ``axes`` is a part of, each a letter, one of ELEMENTS the last one in memory.

    None where there is none, or its elements lie otherwise. ``share``: what stands for the axis ``g`` in a program;
    ``of_parts``: as of ``places``.
    """
    for place in places(graph, value, of_parts=of_parts):
        found = None if place.node.op == "constant" else _heads(graph, place, value, axes, share)
        if found is not None:
            return found
    return None


def _heads(graph: Graph, place: Placed, value: Node, axes: str, share: str) -> Heads | None:
    dims = graph.shape(place.node.name)
    (last,) = (axis for axis, letter in enumerate(axes) if letter in ELEMENTS)
    size = graph.shape(value.name)[last].constant
    own = {axis for axis, letter in enumerate(axes) if letter in OF_HEADS}
    first = len(dims)
    while first and dims[first - 1].constant is not None and own.issuperset(place.indices[first - 1].factors):
        first -= 1
    width, index = product(dims[first:]).constant, _flat(dims[first:], place.indices[first:])
    outer = _outer(graph, place, value, own, first)
    if not size or not width or width % size or outer is None:
        return None
    head, element = index.parted(size)
    if element != Index({last: 1}):
        return None
    names = {axis: share if letter == "g" else letter for axis, letter in enumerate(axes)}
    read = [_text(each, names) for each in outer]
    view = (*((axis,) for axis in range(first)), tuple(range(first, len(dims))))
    if width == size:
        return Heads(place.node, view, 0, (*dims[:first], DimExpr.of(size)), (*read, axes[last]))
    shape = (*dims[:first], DimExpr.of(width // size), DimExpr.of(size))
    return Heads(place.node, view, size, shape, (*read, _text(head, names), axes[last]))


def _flat(dims: Shape, indices: tuple[Index, ...]) -> Index:
    """One index of constant dims that are one."""
    whole = Index({})
    for place, index in enumerate(indices):
        whole = whole.plus(index.times(product(dims[place + 1 :]).constant or 0))
    return whole


def _outer(graph: Graph, place: Placed, value: Node, own: set[int], first: int) -> list[Index] | None:
    """The indices of the axes before ``first``: each axis of the value but its ``own``, once; None for others.

    Axes of size 1, which a reshape has lost, are those that have no index: a program of any size reads alike.
    """
    dims, shape = graph.shape(place.node.name), graph.shape(value.name)
    found = list(place.indices[:first])
    lost = [axis for axis in range(len(shape)) if axis not in own and all(axis not in each.factors for each in found)]
    for at, index in enumerate(found):
        if not index.factors and dims[at] == ONE and lost and shape[lost[0]] == ONE:
            found[at] = Index({lost.pop(0): 1})
    axes = [tuple(each.factors.items()) for each in found]
    is_plain = sorted(axes) == [((axis, 1),) for axis in range(len(shape)) if axis not in own]
    return found if is_plain and not any(each.constant for each in found) else None


def _text(index: Index, names: Mapping[int, str]) -> str:
    terms = [names[axis] if factor == 1 else f"{factor}*({names[axis]})" for axis, factor in index.factors.items()]
    terms += [str(index.constant)] if index.constant or not terms else []
    return " + ".join(terms)
