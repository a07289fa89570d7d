"""Permuted values that calls read as they lie: permutes that undo one another need not be carried out.

A call that writes images with their channels last is followed by a permute, and so is what reads them. Here permutes
move behind views and join those that follow, and calls take their operands from before a permute where these lie so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from shapewright.models.graph import Shape
from shapewright.models.orders import reshaped
from shapewright.models.symbols import dim_of
from shapewright.torch.op import call
from shapewright.torch.plan import Taken, plan_of
from shapewright.torch.seen import VIEWS, has_all
from shapewright.torch.steps import REST
from shapewright.torch.transposes import order_of
from tuner.errors import InvalidInput

aten = torch.ops.aten


def cancel_permutes(graph: fx.Graph) -> None:
    """Sink the permutes of a graph, whose views have sizes, below views, and drop those that cancel out."""
    for node in list(graph.nodes):
        if node.target is call:
            _read_as_they_lie(node)
        elif node.args and (before := _permuted(node.args[0])) is not None:
            source, order = before
            if (own := _order(node)) is not None:
                _permute(node, source, [order[axis] for axis in own])
            elif node.target in VIEWS:
                _view_before(node, source, order)
    graph.eliminate_dead_code()


def _order(node: Any) -> list[int] | None:
    """Which axis of its input each axis of a node is, if that is all that it changes."""
    value = _value(node.args[0]) if isinstance(node, fx.Node) and node.args else None
    return None if value is None else order_of(node, value.dim())


def _permuted(node: Any) -> tuple[fx.Node, list[int]] | None:
    """What a node is a permuted value of, and in which order."""
    order = _order(node)
    return None if order is None else (node.args[0], order)


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _permute(node: fx.Node, source: fx.Node, order: Sequence[int]) -> None:
    """``source`` in that order in the place of a node."""
    new = source
    if list(order) != list(range(len(order))):
        with node.graph.inserting_before(node):
            new = node.graph.call_function(aten.permute.default, (source, list(order)))
        new.meta = dict(node.meta)
    node.replace_all_uses_with(new)


def _view_before(node: fx.Node, source: fx.Node, order: Sequence[int]) -> None:
    """A view of a permuted value as a permuted view, where it parts axes or joins those that lie side by side."""
    before, after, given, sizes = _value(node.args[0]), _value(node), _value(source), node.args[1]
    if before is None or after is None or given is None or REST in sizes:
        return
    lies = tuple(sorted(range(len(order)), key=order.__getitem__))
    try:
        axes = reshaped(_dims(before), lies, _dims(after))
    except InvalidInput:
        # A size that no dim can say: whether the axes part so is not known.
        return
    if axes is None:
        return
    with node.graph.inserting_before(node):
        # No view: the source may be a part of another value.
        new = node.graph.call_function(aten.reshape.default, (source, [sizes[axis] for axis in axes]))
    new.meta = {**node.meta, "val": given.reshape([after.shape[axis] for axis in axes])}
    _permute(node, new, [axes.index(axis) for axis in range(len(axes))])


def _dims(value: torch.Tensor) -> Shape:
    return tuple(map(dim_of, value.shape))


# -- calls ------------------------------------------------------------------------------------------------------------
def _read_as_they_lie(node: fx.Node) -> None:
    """Operands that a call views in the order in which they lie before a permute are taken from there."""
    tensors, sizes, text = node.args
    plan, given = plan_of(text), list(tensors)
    operands = tuple(_taken(taken, given) for taken in plan.operands)
    if operands != plan.operands:
        used = dict.fromkeys(each for taken in operands for each in taken.inputs if each is not None)
        place = {each: number for number, each in enumerate(used)}
        operands = tuple(
            replace(taken, inputs=tuple(None if each is None else place[each] for each in taken.inputs))
            for taken in operands
        )
        node.args = ([given[each] for each in used], sizes, replace(plan, operands=operands).text())


def _taken(taken: Taken, given: list[fx.Node]) -> Taken:
    """How an operand is taken; what it is then read from is put behind ``given``."""
    (first, *more), before = taken.inputs, None
    if not taken.is_kept and not more and first is not None:
        before = _permuted(given[first])
    if before is None:
        return taken
    source, order = before
    view = tuple(tuple(order[axis] for axis in group) for group in taken.view)
    axes, value = [axis for group in view for axis in group], _value(source)
    if axes != sorted(axes) or value is None or not has_all(axes, value.shape):
        return taken
    given.append(source)
    return replace(taken, inputs=(len(given) - 1,), view=view)
