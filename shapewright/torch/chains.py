"""Calls of libraries that follow one another in a graph become chains (``shapewright.torch.chain_op``).

Between two calls of a chain there are only views, of whole values or of pieces that lie in a row, such as the last row,
joins of values to what is at hand, as of keys to those of words before (``shapewright.torch.joins``), and transposes
(``shapewright.torch.transposes``). What stands between them otherwise goes before the chain, if it reads nothing of it,
or behind. A call that reads what stands behind begins a new chain.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from shapewright.torch.chain import may_be_chained
from shapewright.torch.chain_op import chain
from shapewright.torch.joins import is_at_hand, join_of, sizes_of_join
from shapewright.torch.op import call, prepared
from shapewright.torch.permutes import cancel_permutes
from shapewright.torch.plan import Plan, is_made_in_order, plan_of
from shapewright.torch.repeats import is_random
from shapewright.torch.seen import VIEWS, Seen, has_all, seen_by
from shapewright.torch.steps import REST, ChainPlan, Made, Sizes, Step
from shapewright.torch.transposes import transpose_of

aten = torch.ops.aten
SHORTEST = 2

Parts = tuple[Sequence[fx.Node], Sequence[Any], str]
"""Of a call: the tensors, the sizes of its value, and its plan."""


@dataclass
class _Found:
    """Calls in order, and what depends on them."""

    calls: list[fx.Node] = field(default_factory=list)
    copies: dict[fx.Node, tuple[Sequence[Any], str]] = field(default_factory=dict)
    """Those of the calls that are joins and transposes: the sizes and the plan."""
    inside: dict[fx.Node, Seen] = field(default_factory=dict)
    behind: set[fx.Node] = field(default_factory=set)

    def is_drawn_behind(self, node: fx.Node) -> bool:
        """Whether a node draws random numbers behind another one that does: they keep their order."""
        return is_random(node) and any(map(is_random, self.behind))

    def add(self, node: fx.Node) -> None:
        self.calls.append(node)
        self.inside[node] = Seen(node, self.parts(node)[1])

    def parts(self, node: fx.Node) -> Parts:
        """Of a call, as they are now: what another chain has made has taken the place of its calls."""
        if node not in self.copies:
            return node.args  # type: ignore[no-any-return]
        sizes, text = self.copies[node]
        given = node.args[0]
        return [given] if isinstance(given, fx.Node) else list(given), sizes, text

    def takes(self, tensors: Sequence[fx.Node], text: str) -> bool:
        """Whether a call can be the next one."""
        if any(each in self.behind for each in tensors):
            return False
        for taken in plan_of(text).operands:
            read = [tensors[each] for each in taken.inputs if each is not None]
            axes = [axis for group in taken.view for axis in group]
            in_order = axes == sorted(axes) and not taken.is_kept
            for each in read:
                if each in self.inside and not (in_order and has_all(axes, self.inside[each].sizes)):
                    return False
        return True


def make_chains(module: fx.GraphModule, constants: Mapping[str, str | None], frozen: int = 0) -> int:
    """Put chains in the place of calls; how many. The graph is one that is traced again, whose views have sizes.

    ``constants``: the placeholders that stay from call to call, and by which name a frozen program keeps each, if it
    does; ``frozen``: see ``ChainPlan``.
    """
    # A view that nobody reads would make its value one of the chain's.
    module.graph.eliminate_dead_code()
    for node in module.graph.find_nodes(op="call_function", target=call):
        _make_in_order(node)
    cancel_permutes(module.graph)
    made = 0
    for found in _found(module.graph):
        if len(found.calls) >= SHORTEST:
            # Those whose constants are looked at by each call may be one chain, whatever model they are in.
            _replace(module.graph, found, constants, (frozen, made if frozen else 0))
            made += 1
    if made:
        module.graph.lint()
        module.recompile()
    return made


def _make_in_order(node: fx.Node) -> None:
    """Have a call that may be chained make its output as it lies in memory, and a view of that in its place."""
    tensors, sizes, text = node.args
    plan = plan_of(text)
    groups, rank = plan.output, len(sizes)
    order = [axis for group in groups for axis in group]
    if is_made_in_order(plan) or sorted(order) != list(range(rank)) or not may_be_chained(prepared(text)):
        return
    starts = itertools.accumulate(map(len, groups), initial=0)
    output = tuple(tuple(range(start, start + len(group))) for start, group in zip(starts, groups, strict=False))
    back = [order.index(axis) for axis in range(rank)]
    with node.graph.inserting_before(node):
        new = node.graph.call_function(
            call, (tensors, [sizes[axis] for axis in order], replace(plan, output=output).text())
        )
        new.meta = {**node.meta, "val": node.meta["val"].permute(order)}
        view = node.graph.call_function(aten.permute.default, (new, back))
        view.meta = dict(node.meta)
    node.replace_all_uses_with(view)
    node.graph.erase_node(node)


def _found(graph: fx.Graph) -> list[_Found]:
    all_found = [_Found()]
    for node in list(graph.nodes):
        now = all_found[-1]
        if _can_be_called(node):
            tensors, sizes, text = node.args
            size_nodes = [each for each in sizes if isinstance(each, fx.Node)]
            if not now.takes([*tensors, *size_nodes], text):
                all_found.append(now := _Found())
            now.add(node)
        elif (copy := _join(node, now) or _transpose(node, now)) is not None:
            now.copies[node] = copy
            now.add(node)
        elif any(each in now.behind for each in node.all_input_nodes) or now.is_drawn_behind(node):
            now.behind.add(node)
        elif any(each in now.inside for each in node.all_input_nodes):
            seen = seen_by(node, now.inside.get(node.args[0]))
            if seen is None:
                now.behind.add(node)
            else:
                now.inside[node] = seen
    return all_found


def _can_be_called(node: fx.Node) -> bool:
    if node.target is not call:
        return False
    plan: Plan = plan_of(node.args[2])
    return is_made_in_order(plan) and bool(node.args[1]) and may_be_chained(prepared(node.args[2]))


def _join(node: fx.Node, found: _Found) -> tuple[Sequence[Any], str] | None:
    """The sizes and the plan of a join of what the calls have made to what is at hand, for a call to read; None where
    it is none of these."""
    join = join_of(node) if _is_to_be_joined(node) else None
    if join is None:
        return None
    inputs, axis, text = join
    made = {each: found.inside[each].sizes for each in inputs if each in found.inside}
    if not made or not found.takes(inputs, text) or not all(is_at_hand(each) for each in inputs if each not in made):
        return None
    sizes = sizes_of_join(node, inputs, axis, made)
    return None if sizes is None else (sizes, text)


def _is_to_be_joined(node: fx.Node) -> bool:
    """Whether a call, another join or the caller reads a node: loops that read it would join it on their way."""
    return any(
        user.op == "output" or user.target in (call, aten.cat.default)
        or (user.target in VIEWS and _is_to_be_joined(user)) for user in node.users
    )  # fmt: skip


def _transpose(node: fx.Node, found: _Found) -> tuple[Sequence[Any], str] | None:
    """The sizes and the plan of a transposed value that calls alone read; None where it is none of these."""
    of = found.inside.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    if of is None or REST in of.sizes or not _is_read_by_calls_alone(node):
        return None
    transpose = transpose_of(node, of.sizes)
    return transpose if transpose is not None and found.takes([node.args[0]], transpose[1]) else None


def _is_read_by_calls_alone(node: fx.Node) -> bool:
    return bool(node.users) and all(
        user.target is call or (user.target in VIEWS and _is_read_by_calls_alone(user)) for user in node.users
    )


def _replace(graph: fx.Graph, found: _Found, constants: Mapping[str, str | None], frozen: tuple[int, int]) -> None:
    """``frozen``: the program's number and which of its chains this one is."""
    calls = set(found.calls)
    outside = {
        seen.call for node, seen in found.inside.items() for user in node.users
        if user not in calls and user not in found.inside
    }  # fmt: skip
    outputs = [node for node in found.calls if node in outside]
    kept = _kept_by_program(found, constants) if frozen[0] else {}
    given_tensors = dict.fromkeys(
        each for its_tensors, _, _ in map(found.parts, found.calls) for each in its_tensors
        if each not in found.inside and each not in kept
    )  # fmt: skip
    tensors = {node: number for number, node in enumerate([*given_tensors, *kept])}
    sizes: dict[Any, tuple[int, fx.Node]] = {}
    numbers = {node: number for number, node in enumerate(found.calls)}

    def size(given: Any) -> int | None:
        if isinstance(given, int):
            return None if given == REST else given
        # Nodes of one size are one.
        value = given.meta.get("val")
        key = value.node.expr if isinstance(value, torch.SymInt) else given
        return -1 - sizes.setdefault(key, (len(sizes), given))[0]

    def sized(given: Iterable[Any]) -> Sizes:
        return tuple(map(size, given))

    steps = []
    for given, its_sizes, text in map(found.parts, found.calls):
        inputs: list[int | Made] = []
        for each in given:
            if each in found.inside:
                seen = found.inside[each]
                inputs.append(Made(numbers[seen.call], sized(seen.sizes), seen.piece))
            else:
                inputs.append(tensors[each])
        steps.append(Step(text, tuple(inputs), sized(its_sizes)))
    staying = tuple(number for node, number in tensors.items() if node.name in constants)
    plan = ChainPlan(
        tuple(steps), tuple(numbers[node] for node in outputs), staying, *frozen, tuple(kept.values())
    )  # fmt: skip
    last = found.calls[-1]
    with graph.inserting_before(last):
        given_sizes = [node for _, node in sizes.values()]
        new = graph.call_function(chain, (list(given_tensors), given_sizes, plan.text()))
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


def _kept_by_program(found: _Found, constants: Mapping[str, str | None]) -> dict[fx.Node, str]:
    """The constants that a chain need not be given, and their names: those that calls read with nothing else in one
    operand. Empty where a chain would be given no tensor at all."""
    kept: dict[fx.Node, str] = {}
    shown: set[fx.Node] = set()
    for tensors, _, text in map(found.parts, found.calls):
        for taken in plan_of(text).operands:
            read = [tensors[each] for each in taken.inputs if each is not None]
            names = [constants.get(each.name) for each in read]
            if all(names):
                kept.update({node: name for node, name in zip(read, names, strict=True) if name})
            else:
                shown.update(read)
    return {node: name for node, name in kept.items() if node not in shown} if shown - set(found.inside) else {}


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
