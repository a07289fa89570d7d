"""Values transposed by a step of a chain, as images between convolutions (NCHW) and rows of channels (NHWC).

PyTorch would copy them between two chains, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from shapewright.models.lifted import viewed
from shapewright.torch.joins import NAMES, Copying
from shapewright.torch.plan import Plan, Taken

aten = torch.ops.aten
TRANSPOSE = "transpose"
"""In the place of a library's digest."""


class Transpose(Copying):
    """Of matrices."""

    code, workload = "transpose", "torch.permute"

    def __call__(self, operands: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        ((_, taken),) = self.taken
        return viewed(operands[0], taken.view).transpose(1, 2).reshape(sizes)


def order_of(node: fx.Node, rank: int) -> list[int] | None:
    """Which axis of its input each axis of a node is, if that is all that it changes."""
    if node.target is aten.permute.default:
        return [axis % rank for axis in node.args[1]]
    if node.target is aten.transpose.int and rank:
        order, (one, other) = list(range(rank)), (axis % rank for axis in node.args[1:])
        order[one], order[other] = order[other], order[one]
        return order
    return None


def transpose_of(node: fx.Node, sizes: Sequence[Any]) -> tuple[list[Any], str] | None:
    """The sizes and the plan of a node that transposes matrices [.., rows, columns] of a value of ``sizes``, rows and
    columns being axes side by side; None for another."""
    order, value = order_of(node, len(sizes)), node.meta.get("val")
    if order is None or value is None or value.dtype not in NAMES:
        return None
    moved = [axis for axis in order if sizes[axis] != 1]
    still = sorted(moved)
    same = next((at for at, axis in enumerate(moved) if axis != still[at]), len(moved))
    outer, back, inner = tuple(moved[:same]), moved[same:], still[same:]
    for cut in range(1, len(inner)):
        if back == inner[cut:] + inner[:cut]:
            rows, columns = tuple(inner[:cut]), tuple(inner[cut:])
            output = tuple(tuple(order.index(axis) for axis in group) for group in (outer, columns, rows))
            plan = Plan(TRANSPOSE, (Taken((0,), (outer, rows, columns)),), output, NAMES[value.dtype])
            return [sizes[axis] for axis in order], plan.text()
    return None
