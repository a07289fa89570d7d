"""Masks of attention as models build them: bools that became floats, and masks that hide nothing.

A model that cannot know whether it needs a mask makes one of the positions of words. Exported it has that mask, and
compiled for inputs without one it has none: both are the same attention.
"""

from __future__ import annotations

import math

from shapewright.models.graph import VIEWS, Graph, Input, Node


def plain_mask(graph: Graph, mask: Node | None) -> Node | None:
    """The mask of bools that one of floats was made of, and nothing for a mask that hides nothing."""
    if mask is None or mask.op != "where" or mask.inputs[1] != 0.0:
        return mask
    seen = graph.source(mask.inputs[0])
    if _is_true(graph, seen.name):
        return None
    # Where all scores of a row are lowered by a finite number, they still count.
    return seen if mask.inputs[2] == -math.inf else mask


def _is_true(graph: Graph, value: Input) -> bool:
    """Whether every element of a tensor of bools, or a number, is true, whatever the sizes."""
    if not isinstance(value, str):
        return bool(value)
    node = graph[value]
    if node.op in VIEWS or node.op == "both":
        return all(_is_true(graph, each) for each in node.inputs)
    if node.op == "ge":
        return _least(graph, node.inputs[0]) >= _number(node.inputs[1])
    return node.op in ("full", "constant") and bool(node.attrs.get("value"))


def _least(graph: Graph, value: Input) -> float:
    """A bound below every element of a tensor of integers."""
    if not isinstance(value, str):
        return _number(value) if value is not None else -math.inf
    node = graph[value]
    if node.op in VIEWS:
        return _least(graph, node.inputs[0])
    if node.op == "add":
        return sum(_least(graph, each) for each in node.inputs)
    return float(node.attrs["least"]) if node.op == "range" else -math.inf


def _number(value: Input) -> float:
    """A number; for what is none, one that is above all."""
    return float(value) if isinstance(value, int | float) else math.inf
