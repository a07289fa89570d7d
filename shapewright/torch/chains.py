"""Calls of libraries that follow one another in a graph become chains (``shapewright.torch.chain``).

Between two calls of a chain there are only views, of whole values or of pieces that lie in a row, such as the last row,
and joins of values to what is at hand, as of keys to those of words before (``shapewright.torch.joins``). What stands
between them otherwise goes before the chain, if it reads nothing of it, or behind. A call that reads what stands behind
begins a new chain.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from shapewright.torch.chain import chain, is_made_in_order, may_be_chained
from shapewright.torch.joins import is_at_hand, join_of, sizes_of_join
from shapewright.torch.op import call, prepared
from shapewright.torch.plan import Plan, plan_of
from shapewright.torch.steps import ChainPlan, Made, Sizes, Step

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
REST = -1
"""A view's size that is what the elements make up."""
SHORTEST = 2

Parts = tuple[Sequence[fx.Node], Sequence[Any], str]
"""Of a call: the tensors, the sizes of its value, and its plan."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call, or a view of its value: the call, the sizes by which it is seen, and which piece of it is."""

    call: fx.Node
    sizes: Sequence[Any]
    piece: int | None = None


@dataclass
class _Found:
    """Calls in order, and what depends on them."""

    calls: list[fx.Node] = field(default_factory=list)
    joins: dict[fx.Node, tuple[Sequence[Any], str]] = field(default_factory=dict)
    """Those of the calls that are joins: the sizes and the plan."""
    inside: dict[fx.Node, _Seen] = field(default_factory=dict)
    behind: set[fx.Node] = field(default_factory=set)

    def is_drawn_behind(self, node: fx.Node) -> bool:
        """Whether a node draws random numbers behind another one that does: they keep their order."""
        return _is_random(node) and any(map(_is_random, self.behind))

    def add(self, node: fx.Node) -> None:
        self.calls.append(node)
        self.inside[node] = _Seen(node, self.parts(node)[1])

    def parts(self, node: fx.Node) -> Parts:
        """Of a call, as they are now: what another chain has made has taken the place of its calls."""
        if node not in self.joins:
            return node.args  # type: ignore[no-any-return]
        sizes, text = self.joins[node]
        return list(node.args[0]), sizes, text

    def takes(self, tensors: Sequence[fx.Node], text: str) -> bool:
        """Whether a call can be the next one."""
        if any(each in self.behind for each in tensors):
            return False
        for taken in plan_of(text).operands:
            read = [tensors[each] for each in taken.inputs if each is not None]
            axes = [axis for group in taken.view for axis in group]
            in_order = axes == sorted(axes) and not taken.is_kept
            for each in read:
                if each in self.inside and not (in_order and _has_all(axes, self.inside[each].sizes)):
                    return False
        return True


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _has_all(axes: Sequence[int], sizes: Sequence[Any]) -> bool:
    """Whether all that a view leaves out is of size 1: the scale of each row is read without its last axis."""
    return all(axis in axes or size == 1 for axis, size in enumerate(sizes))


def make_chains(module: fx.GraphModule, constants: Mapping[str, str | None], frozen: int = 0) -> int:
    """Put chains in the place of calls; how many. The graph is one that is traced again, whose views have sizes.

    ``constants``: the placeholders that stay from call to call, and by which name a frozen program keeps each, if it
    does; ``frozen``: see ``ChainPlan``.
    """
    # A view that nobody reads would make its value one of the chain's.
    module.graph.eliminate_dead_code()
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
        elif (join := _join(node, now)) is not None:
            now.joins[node] = join
            now.add(node)
        elif any(each in now.behind for each in node.all_input_nodes) or now.is_drawn_behind(node):
            now.behind.add(node)
        elif any(each in now.inside for each in node.all_input_nodes):
            seen = _viewed(node, now.inside.get(node.args[0]))
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
    made = {each for each in inputs if each in found.inside}
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


def _viewed(node: fx.Node, of: _Seen | None) -> _Seen | None:
    """What a node sees of a call's value; None where that is not in a row, or is no view at all."""
    if of is None:
        return None
    if node.target is aten.clone.default:
        return of
    if node.target in VIEWS:
        sizes = node.args[1]
        known = all(isinstance(size, fx.Node) or (isinstance(size, int) and size >= REST) for size in sizes)
        # What the elements make up is known of whole values alone.
        return _Seen(of.call, sizes, of.piece) if known and (of.piece is None or REST not in sizes) else None
    if node.target is aten.permute.default:
        return _turned(of, node.args[1])
    if REST in of.sizes or len(node.args) < 2 or not isinstance(node.args[1], int):
        return None
    if node.target is aten.transpose.int:
        order = list(range(len(of.sizes)))
        one, other = node.args[1:]
        order[one], order[other] = order[other], order[one]
        return _turned(of, order)
    axis = node.args[1]
    if node.target is aten.unsqueeze.default:
        axis %= len(of.sizes) + 1
        return _Seen(of.call, [*of.sizes[:axis], 1, *of.sizes[axis:]], of.piece)
    axis %= max(1, len(of.sizes))
    before, behind = of.sizes[:axis], of.sizes[axis + 1 :]
    if node.target is aten.squeeze.dim and of.sizes[axis] == 1:
        return _Seen(of.call, [*before, *behind], of.piece)
    if node.target is aten.select.int and of.piece is None and all(size == 1 for size in before):
        piece = node.args[2]
        return _Seen(of.call, [*before, *behind], piece) if isinstance(piece, int) else None
    return None


def _turned(of: _Seen, order: Sequence[int]) -> _Seen | None:
    """A value whose axes change places, if only such of size 1 do."""
    axes = [axis % len(of.sizes) for axis in order]
    moved = [axis for axis in axes if of.sizes[axis] != 1]
    return _Seen(of.call, [of.sizes[axis] for axis in axes], of.piece) if moved == sorted(moved) else None


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
    operand. None where all are, since a chain is given some tensor."""
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
