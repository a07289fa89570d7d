"""Common subexpressions of a graph, as a mask that each layer computes anew, are computed once: what stands between two
calls of libraries keeps them from being one chain."""

from __future__ import annotations

import operator
from types import BuiltinFunctionType

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

NAMESPACES = ("aten", "prims", "shapewright")
"""Of operators that are known to compute nothing but their value."""


def merge_repeats(graph: fx.Graph) -> None:
    """Compute what nodes of the same operator and arguments make once, in a graph that writes to no value."""
    first: dict[tuple[object, str], fx.Node] = {}
    for node in list(graph.nodes):
        if not is_function(node) or is_returned(node):
            continue
        # Numbers that are equal and of different types are written otherwise, and nodes are told by their names.
        earlier = first.setdefault((node.target, repr((node.args, node.kwargs))), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def is_function(node: fx.Node) -> bool:
    """Whether equal arguments make equal values."""
    if node.op != "call_function" or free_unbacked_symbols(node.meta.get("val")):
        return False
    target = node.target
    if isinstance(target, BuiltinFunctionType):
        return target.__module__ == operator.add.__module__
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES:
        return False
    return not target._schema.is_mutable and not is_random(node)


def is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_returned(node: fx.Node) -> bool:
    """Whether the caller gets a value, or a view of it: two results do not share memory."""
    return any(user.op == "output" or (is_view(user) and is_returned(user)) for user in node.users)


def is_view(node: fx.Node) -> bool:
    """Whether a node's value is a view of another, or one of several that another node computes."""
    return node.target is operator.getitem or (isinstance(node.target, torch._ops.OpOverload) and node.target.is_view)
