"""Operands of a call as they lie in the model: where a transpose before an operator need not be carried out."""

from __future__ import annotations

from shapewright.models.graph import ONE, CannotLift, Graph, Node, Shape
from shapewright.models.lifted import Fold, Operand, View
from shapewright.models.views import grouped

Order = tuple[int, ...]


def behind(graph: Graph, node: Node) -> tuple[Node, Order]:
    """The node whose axes a value only has in another order, and by axis of the value the one of that node."""
    order = tuple(range(len(graph.shape(node.name))))
    while node.op in ("identity", "permute"):
        if node.op == "permute":
            order = tuple(node.attrs["order"][axis] for axis in order)
        node = graph[node.sources[0]]
    return node, order


def constant_behind(graph: Graph, node: Node) -> tuple[Node, Order, Fold | None] | None:
    """The constant that a value is, transposed, cast or dequantised perhaps; by axis of the value the one of the
    constant; how it is computed. None where it is no constant."""
    source, order = behind(graph, node)
    fold = None
    if source.op == "cast":
        kept, moved = behind(graph, graph[source.sources[0]])
        fold = Fold("cast", (kept.name,), dtype=source.dtype)
        source, order = kept, tuple(moved[axis] for axis in order)
    elif source.op == "dequantised":
        scales: tuple[str | None, ...] = (*source.sources[1:], None)[:2]
        nodes = (source.sources[0], *scales)
        fold = Fold("dequantised", nodes, 0.0, source.attrs["axis"] or 0, source.dtype)
        source = graph[source.sources[0]]
    return (source, order, fold) if source.op == "constant" else None


def operand(graph: Graph, tensor: str, node: Node, dims: Shape, order: Order | None = None) -> Operand:
    """``node`` as a tensor of ``dims``, its axes taken in ``order``; of a constant the one before transposes.

    Raises CannotLift where the axes do not part so.
    """
    shape = graph.shape(node.name)
    order = order or tuple(range(len(shape)))
    view = grouped(tuple(shape[axis] for axis in order), dims)
    if view is None:
        raise CannotLift(f"{node.name} has shape {listed(shape)}, which does not part into {listed(dims)}")
    view = tuple(tuple(order[axis] for axis in group) for group in view)
    return fixed(graph, tensor, node, view)


def fixed(graph: Graph, tensor: str, node: Node, view: View) -> Operand:
    """``node`` through ``view``; a constant is taken before its transposes, and packed once."""
    found = constant_behind(graph, node)
    if found is None:
        return Operand(tensor, node.name, view)
    source, moved, fold = found
    shape = graph.shape(source.name)
    groups = (tuple(moved[axis] for axis in group) for group in view)
    return Operand(tensor, source.name, tuple(_without_ones(group, shape) for group in groups), True, fold)


def swapped(rank: int) -> Order:
    """The last two axes the other way round."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _without_ones(group: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    return tuple(axis for axis in group if shape[axis] != ONE) or group[:1]


def listed(shape: Shape) -> str:
    """A shape for a message."""
    return f"[{', '.join(map(str, shape))}]"
