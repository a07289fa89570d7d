"""Calls of libraries that follow one another in a graph become chains (``shapewright.torch.chain``).

Between two calls of a chain there are only views. What stands between them otherwise goes before the chain, if it reads
nothing of it, or behind. A call that reads what stands behind begins a new chain.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from shapewright.torch.chain import ChainPlan, Made, Sizes, Step, chain, is_made_in_order, may_be_chained
from shapewright.torch.op import call, prepared
from shapewright.torch.plan import Plan, plan_of

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
REST = -1
"""A view's size that is what the elements make up."""
SHORTEST = 2


@dataclass
class _Found:
    """Calls in order, and what depends on them."""

    calls: list[fx.Node] = field(default_factory=list)
    inside: dict[fx.Node, tuple[fx.Node, Sequence[Any]]] = field(default_factory=dict)
    """Calls and views of their values: the call, and the sizes by which it is seen."""
    behind: set[fx.Node] = field(default_factory=set)

    def takes(self, node: fx.Node) -> bool:
        """Whether a call can be the next one."""
        if any(each in self.behind for each in node.all_input_nodes):
            return False
        tensors, _, text = node.args
        for taken in plan_of(text).operands:
            read = [tensors[each] for each in taken.inputs if each is not None]
            axes = [axis for group in taken.view for axis in group]
            in_order = axes == list(range(len(axes))) and not taken.is_kept
            for each in read:
                if each in self.inside and not (in_order and len(axes) == len(self.inside[each][1])):
                    return False
        return True


def make_chains(module: fx.GraphModule) -> int:
    """Put chains in the place of calls; how many. The graph is one that is traced again, whose views have sizes."""
    made = 0
    for found in _found(module.graph):
        if len(found.calls) >= SHORTEST:
            _replace(module.graph, found)
            made += 1
    if made:
        module.graph.lint()
        module.recompile()
    return made


def _found(graph: fx.Graph) -> list[_Found]:
    all_found = [_Found()]
    for node in graph.nodes:
        now = all_found[-1]
        if _can_be_called(node):
            if not now.takes(node):
                all_found.append(now := _Found())
            now.calls.append(node)
            now.inside[node] = (node, node.args[1])
        elif any(each in now.behind for each in node.all_input_nodes):
            now.behind.add(node)
        elif any(each in now.inside for each in node.all_input_nodes):
            if _is_view(node) and node.args[0] in now.inside:
                now.inside[node] = (now.inside[node.args[0]][0], node.args[1])
            else:
                now.behind.add(node)
    return all_found


def _can_be_called(node: fx.Node) -> bool:
    if node.target is not call:
        return False
    plan: Plan = plan_of(node.args[2])
    return is_made_in_order(plan) and bool(node.args[1]) and may_be_chained(prepared(node.args[2]))


def _is_view(node: fx.Node) -> bool:
    if node.target not in VIEWS:
        return False
    return all(isinstance(size, fx.Node) or (isinstance(size, int) and size >= REST) for size in node.args[1])


def _replace(graph: fx.Graph, found: _Found) -> None:
    calls = set(found.calls)
    outside = {
        root for node, (root, _) in found.inside.items() for user in node.users
        if user not in calls and user not in found.inside
    }  # fmt: skip
    outputs = [node for node in found.calls if node in outside]
    tensors: dict[fx.Node, int] = {}
    sizes: dict[fx.Node, int] = {}
    numbers = {node: number for number, node in enumerate(found.calls)}

    def size(given: Any) -> int | None:
        if isinstance(given, int):
            return None if given == REST else given
        return -1 - sizes.setdefault(given, len(sizes))

    def sized(given: Iterable[Any]) -> Sizes:
        return tuple(map(size, given))

    steps = []
    for node in found.calls:
        inputs: list[int | Made] = []
        for each in node.args[0]:
            if each in found.inside:
                root, seen = found.inside[each]
                inputs.append(Made(numbers[root], sized(seen)))
            else:
                inputs.append(tensors.setdefault(each, len(tensors)))
        steps.append(Step(node.args[2], tuple(inputs), sized(node.args[1])))
    plan = ChainPlan(tuple(steps), tuple(numbers[node] for node in outputs))
    last = found.calls[-1]
    with graph.inserting_before(last):
        new = graph.call_function(chain, (list(tensors), list(sizes), plan.text()))
        new.meta = {**last.meta, "val": [node.meta["val"] for node in outputs]}
        tail = new
        for place, node in enumerate(outputs):
            item = graph.call_function(operator.getitem, (new, place))
            item.meta = dict(node.meta)
            node.replace_all_uses_with(item)
            tail = item
    _put_in_order(graph, found, new, tail)
    for node in reversed(list(found.inside)):
        if not node.users:
            graph.erase_node(node)


def _put_in_order(graph: fx.Graph, found: _Found, new: fx.Node, tail: fx.Node) -> None:
    """Move what reads the chain's outputs, and stands before it, behind it, in the order that it has."""
    calls = set(found.calls)
    before = []
    for node in graph.nodes:
        if node is new:
            break
        if node in found.behind or (node in found.inside and node not in calls):
            before.append(node)
    for node in before:
        tail.append(node)
        tail = node
