"""Patterns of models whose numbers become bytes: what PyTorch and torchao spell out around a product of int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shapewright.models.graph import VIEWS, Graph, Input, Node
from tuner.program.language.dtypes import FLOATS

Bound = Mapping[str, Input]
Made = tuple[str, tuple[Input, ...], Mapping[str, Any]] | None
MULTIPLY_ADD = ("cast", ("add", ("mul", ("cast", "x"), ("cast", "y")), ("cast", "z")))
SHIFTED = ("cast", ("add", ("cast", "x"), 128.0))
"""Rows of int8 as uint8."""
SHIFTED_ROWS = ("sub", ("int_matmul", SHIFTED, "w"), ("mul", ("int_sum", "w"), 128.0))


def _multiply_add(graph: Graph, root: Node, bound: Bound) -> Made:
    """A product and a sum that are rounded once: of floats, in float64."""
    sources = [bound[name] for name in "xyz"]
    doubles = [graph.source(root.inputs[0]), *(graph.source(each) for each in graph.source(root.inputs[0]).sources)]
    are_floats = all(isinstance(each, str) and graph[each].dtype == "float32" for each in sources)
    is_plain = are_floats and root.dtype == "float32" and all(each.dtype == "float64" for each in doubles)
    return ("multiply_add", tuple(sources), {}) if is_plain else None


def _of_shifted_rows(graph: Graph, root: Node, bound: Bound) -> Made:
    """A product of int8 whose rows are uint8 meanwhile, for instructions that take one operand without sign: sums of
    integers, the same whether 128 is added to each number or not."""
    x, w = bound["x"], bound["w"]
    product, shift = (graph.source(each) for each in root.inputs[:2])
    moved, total = graph.source(product.inputs[0]), next(graph.source(each) for each in shift.sources)
    wide = graph.source(moved.inputs[0])
    is_of_columns = (total.attrs["axes"], total.attrs["keep"]) in (([0], True), ([0], False))
    if not isinstance(x, str) or not is_of_columns or graph[x].dtype != "int8":
        return None
    dtypes = tuple(each.dtype for each in (moved, wide, shift, root))
    return ("int_matmul", (x, w), {}) if dtypes == ("uint8", "int32", "int32", "int32") else None


def _of_a_number(graph: Graph, root: Node, bound: Bound) -> Made:
    """The number in the place of a tensor that is full of it."""
    x, full = bound["x"], bound["full"]
    number = _number_everywhere(graph, full)
    is_same = isinstance(x, str) and (graph[x].shape, graph[x].dtype) == (root.shape, root.dtype)
    if number is None or not is_same or root.dtype not in FLOATS:
        return None
    if root.op == "add" and number == 0.0:
        # Minus zero becomes zero by it, which an integer does not show.
        return ("identity", (x,), {}) if _becomes_an_integer(graph, root) else None
    return root.op, tuple(number if each == full else each for each in root.inputs), root.attrs


def _number_everywhere(graph: Graph, value: Input) -> float | None:
    if not isinstance(value, str):
        return None
    node = graph.source(value)
    while node.op in (*VIEWS, "cast"):
        node = graph.source(node.inputs[0])
    number = node.attrs["value"] if node.op == "full" else None
    return None if number is None or not math.isfinite(number) or number % 1 else float(number)


def _becomes_an_integer(graph: Graph, node: Node) -> bool:
    reader = graph.only_reader(node.name)
    while reader is not None and reader.op in (*VIEWS, "clamp"):
        reader = graph.only_reader(reader.name)
    return reader is not None and reader.op == "cast" and reader.dtype not in FLOATS


BYTE_PATTERNS: Sequence[tuple[Any, Callable[[Graph, Node, Bound], Made]]] = (
    (MULTIPLY_ADD, _multiply_add),
    (SHIFTED_ROWS, _of_shifted_rows),
    *(((op, "x", "full"), _of_a_number) for op in ("add", "maximum", "minimum")),
)
"""Patterns, and what makes the operation of a match, as in ``shapewright.models.patterns``."""
