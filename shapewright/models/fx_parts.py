"""ATen's views of parts of tensors: nothing is computed, and nothing is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapewright.models.graph import Node
from shapewright.models.parts import part

GETITEM = "<built-in function getitem>"
SLICE = "aten.slice.Tensor"
SELECT = "aten.select.int"
SEVERAL = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"})
PARTS = frozenset({GETITEM, SLICE, SELECT}) | SEVERAL


def part_of(node: Any, nodes: Mapping[str, Node]) -> tuple[str, Mapping[str, Any] | None]:
    """The node that a part is taken of, and the attributes of the part; None for those where it is another part.

    One of several that a split gives is a part of what was split.
    """
    source = node.args[0]
    if str(node.target) == GETITEM and str(source.target) in SEVERAL:
        return source.args[0].name, _one_of(source, node.args[1], nodes)
    of = nodes.get(source.name)
    if str(node.target) == SLICE and _argument(node, "step") == 1:
        return source.name, _from(of, _argument(node, "dim"), _argument(node, "start") or 0, keep=True)
    if str(node.target) == SELECT:
        return source.name, _from(of, _argument(node, "dim"), _argument(node, "index"), keep=False)
    return source.name, None


def _one_of(several: Any, number: int, nodes: Mapping[str, Node]) -> Mapping[str, Any] | None:
    of, axis = nodes.get(several.args[0].name), _argument(several, "dim")
    match str(several.target):
        case "aten.unbind.int":
            return _from(of, axis, number, keep=False)
        case "aten.split.Tensor":
            size = _argument(several, "split_size")
            return _from(of, axis, size * number if type(size) is int else None, keep=True)
        case _:
            sizes = _argument(several, "split_sizes")[:number]
            return _from(of, axis, sum(sizes) if all(type(size) is int for size in sizes) else None, keep=True)


def _from(of: Node | None, axis: Any, start: Any, *, keep: bool) -> Mapping[str, Any] | None:
    """From ``start`` on, from the end where it is negative and the size is known."""
    if of is None or of.shape is None or type(axis) is not int or type(start) is not int:
        return None
    axis %= len(of.shape)
    size = of.shape[axis].constant
    if start < 0:
        if size is None:
            return None
        start = max(start + size, 0)
    return part(axis, start, keep) if size is None or start < size else None


def _argument(node: Any, name: str) -> Any:
    """An argument by the schema's name, or its default."""
    for place, each in enumerate(node.target._schema.arguments):
        if each.name == name:
            if place < len(node.args):
                return node.args[place]
            return node.kwargs.get(name, each.default_value)
    raise KeyError(name)
