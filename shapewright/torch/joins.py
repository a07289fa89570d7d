"""Tensors joined along an axis by a step of a chain, as keys and values of words before and of new ones are.

Inductor would copy them between two chains: what Python does around that takes longer than the copy.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import fx

from shapewright.models.lifted import View, viewed
from shapewright.torch.native import address_of, native
from shapewright.torch.plan import DTYPES, Get, Plan, Taken
from shapewright.torch.steps import REST

aten = torch.ops.aten
JOIN = "join"
"""In the place of a library's digest."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PIECES = frozenset({aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
                    aten.view.default, aten.unbind.int, aten.split.Tensor, aten.permute.default})  # fmt: skip
"""Operators that make views of what is there."""


class Copying:
    """A copy as a chain has it: what ``Call`` is for a library. ``code``: its function in native.c; ``workload``: that
    of PyTorch. Safe to use from several threads."""

    is_plain, threads = True, 1
    code: str
    workload: str

    def __init__(self, plan: Plan) -> None:
        self.view = plan.output
        self.taken = [(str(number), taken) for number, taken in enumerate(plan.operands)]
        self.copies: dict[str, int] = {}

    @property
    def entry(self) -> int:
        """The address of its code."""
        code = native()
        return 0 if code is None else address_of(code, self.code)

    @property
    def rows(self) -> tuple[bool, ...] | None:
        """As ``Call.rows``: the outermost axes are those of all operands."""
        return (True,) * len(self.taken) if self.view[0] else None

    @abstractmethod
    def __call__(self, operands: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        """The copy, as PyTorch makes it."""

    def getter(self, name: str, taken: Taken) -> Get:
        """What gives the input of that name, as a tensor without gaps."""
        (position,), view = taken.inputs, taken.view
        assert position is not None
        return lambda operands: viewed(operands[position], view).contiguous()


class Join(Copying):
    code, workload = "join", "torch.cat"

    def __call__(self, operands: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        return torch.cat(list(operands), len(self.view[0])).contiguous()


def join_of(node: fx.Node) -> tuple[list[fx.Node], int, str] | None:
    """What a node joins, along which axis, and the plan of that; None where it is no join, or not of such tensors."""
    if node.target is not aten.cat.default or not isinstance(node.args[0], list | tuple):
        return None
    value, inputs = node.meta.get("val"), list(node.args[0])
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    tensors = [each.meta.get("val") for each in inputs if isinstance(each, fx.Node)]
    if not isinstance(axis, int) or len(tensors) < len(inputs) or value is None or value.dtype not in NAMES:
        return None
    if any(tensor is None or tensor.dtype != value.dtype or tensor.dim() != value.dim() for tensor in tensors):
        return None
    axis %= max(value.dim(), 1)
    view: View = (tuple(range(axis)), tuple(range(axis, value.dim())))
    operands = tuple(Taken((number,), view) for number in range(len(inputs)))
    return inputs, axis, Plan(JOIN, operands, view, NAMES[value.dtype]).text()


def sizes_of_join(
    node: fx.Node, inputs: Sequence[fx.Node], axis: int, made: Mapping[fx.Node, Sequence[Any]]
) -> list[Any] | None:  # fmt: skip
    """The sizes of what a node joins, as numbers and nodes, which are put before it; None where nobody can tell them
    before the chain runs. ``made``: the sizes of what the chain makes itself, as ``Seen`` has them."""

    def size(of: fx.Node, at: int) -> Any:
        size = of.meta["val"].shape[at]
        if isinstance(size, int):
            return size
        return made[of][at] if of in made else _added(node.graph, aten.sym_size.int, (of, at), size)

    def total(one: Any, other: Any) -> Any:
        if isinstance(one, int) and isinstance(other, int):
            return one + other
        value = sum(each.meta["val"] if isinstance(each, fx.Node) else each for each in (one, other))
        return _added(node.graph, operator.add, (one, other), value)

    # What stands before the chain can be asked for every size.
    first = next((each for each in inputs if each not in made), inputs[0])
    needed = [*((first, at) for at in range(node.meta["val"].dim())), *((each, axis) for each in inputs)]
    if any(of in made and made[of][at] == REST and not isinstance(of.meta["val"].shape[at], int) for of, at in needed):
        return None
    with node.graph.inserting_before(node):
        sizes = [size(first, at) for at in range(node.meta["val"].dim())]
        sizes[axis] = reduce(total, [size(each, axis) for each in inputs])
    return sizes


def _added(graph: fx.Graph, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
    new = graph.call_function(target, args)
    new.meta["val"] = value
    return new


def is_at_hand(node: fx.Node) -> bool:
    """Whether a node is an input of the graph, or a piece of one: nothing is to be computed for it."""
    while node.target in PIECES or node.target is operator.getitem:
        node = node.args[0]
    return node.op in ("placeholder", "get_attr")
