"""What a node of a graph sees of the value of a call: the whole of it, or a piece in a row, with other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from shapewright.torch.steps import REST
from shapewright.torch.transposes import order_of

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})


@dataclass(frozen=True, slots=True)
class Seen:
    """A call, or a view of its value: the call, the sizes by which it is seen, and which piece of it is."""

    call: fx.Node
    sizes: Sequence[Any]
    piece: int | None = None


def seen_by(node: fx.Node, of: Seen | None) -> Seen | None:
    """What a node sees of a call's value; None where that is not in a row, or is no view at all."""
    if of is None:
        return None
    if node.target is aten.clone.default:
        return of
    if node.target in VIEWS:
        sizes = node.args[1]
        known = all(isinstance(size, fx.Node) or (isinstance(size, int) and size >= REST) for size in sizes)
        # What the elements make up is known of whole values alone.
        return Seen(of.call, sizes, of.piece) if known and (of.piece is None or REST not in sizes) else None
    if REST not in of.sizes and (order := order_of(node, len(of.sizes))) is not None:
        return _permuted(of, order)
    if REST in of.sizes or len(node.args) < 2 or not isinstance(node.args[1], int):
        return None
    axis = node.args[1]
    if node.target is aten.unsqueeze.default:
        axis %= len(of.sizes) + 1
        return Seen(of.call, [*of.sizes[:axis], 1, *of.sizes[axis:]], of.piece)
    axis %= max(1, len(of.sizes))
    before, behind = of.sizes[:axis], of.sizes[axis + 1 :]
    if node.target is aten.squeeze.dim and of.sizes[axis] == 1:
        return Seen(of.call, [*before, *behind], of.piece)
    if node.target is aten.select.int and of.piece is None and all(size == 1 for size in before):
        piece = node.args[2]
        return Seen(of.call, [*before, *behind], piece) if isinstance(piece, int) else None
    return None


def _permuted(of: Seen, order: Sequence[int]) -> Seen | None:
    """A permuted value, if only axes of size 1 move."""
    moved = [axis for axis in order if of.sizes[axis] != 1]
    return Seen(of.call, [of.sizes[axis] for axis in order], of.piece) if moved == sorted(moved) else None


def has_all(axes: Sequence[int], sizes: Sequence[Any]) -> bool:
    """Whether all that a view leaves out is of size 1: the scale of each row is read without its last axis."""
    return all(axis in axes or size == 1 for axis, size in enumerate(sizes))
