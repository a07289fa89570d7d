"""ATen's views of parts of tensors: nothing is computed, and nothing is reported."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from shapewright.models.fx_calls import argument
from shapewright.models.graph import Node
from shapewright.models.parts import part_from

GETITEM = str(operator.getitem)
SLICE = "aten.slice.Tensor"
SELECT = "aten.select.int"
SEVERAL = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"})
PARTS = frozenset({GETITEM, SLICE, SELECT}) | SEVERAL


def part_of(node: Any, nodes: Mapping[str, Node]) -> tuple[str, Mapping[str, Any]]:
    """The node that a part is taken of, and the attributes of the part; none where it is not known which part it is.

    One of several that a split gives is a part of what was split.
    """
    source = node.args[0]
    if str(node.target) == GETITEM and str(source.target) in SEVERAL:
        return source.args[0].name, _one_of(source, node.args[1], nodes)
    shape = nodes[source.name].shape if source.name in nodes else None
    if str(node.target) == SLICE and argument(node, "step") == 1:
        return source.name, part_from(shape, argument(node, "dim"), argument(node, "start") or 0)
    if str(node.target) == SELECT:
        return source.name, part_from(shape, argument(node, "dim"), argument(node, "index"), keep=False)
    return source.name, {}


def _one_of(several: Any, number: int, nodes: Mapping[str, Node]) -> Mapping[str, Any]:
    of, axis = nodes.get(several.args[0].name), argument(several, "dim")
    shape = None if of is None else of.shape
    match str(several.target):
        case "aten.unbind.int":
            return part_from(shape, axis, number, keep=False)
        case "aten.split.Tensor":
            size = argument(several, "split_size")
            return part_from(shape, axis, size * number if type(size) is int else None)
        case _:
            sizes = argument(several, "split_sizes")[:number]
            return part_from(shape, axis, sum(sizes) if all(type(size) is int for size in sizes) else None)
