"""Operators that a model spells out in elementary ones, put together again: gelu, silu, norms, attention.

A pattern is an operation with patterns for its inputs, a number, or a name that stands for any input, the same one
wherever it occurs. What is matched must not be read from outside the match, but for its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shapewright.models.byte_patterns import BYTE_PATTERNS, Bound, Made
from shapewright.models.defects import defect
from shapewright.models.elementwise import COMMUTATIVE
from shapewright.models.graph import OUTPUT, VIEWS, Graph, Input, Node
from shapewright.models.operands import swapped
from shapewright.models.parts import part
from tuner.program.language.rounding import SHORT_FLOATS

Pattern = Any
"""``("op", pattern, ...)``, a number, a name, or a list of patterns of which one must match."""
CLOSE = 1e-4
"""How far a constant may be from the one that is meant, relative to it: models round them to float32, and less."""
ROUNDS = 5
"""A pattern may hold what another one made: attention a softmax, a norm a square."""


@dataclass(frozen=True, slots=True)
class Match:
    """What names stand for, and the nodes that were matched, the root among them."""

    bound: Bound
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """``make`` gives the operation, its inputs and its attributes; None where what was bound does not fit."""

    pattern: Pattern
    make: Callable[[Graph, Node, Bound], tuple[str, tuple[Input, ...], Mapping[str, Any]] | None]


def recognised(graph: Graph) -> Graph:
    """The graph with every pattern that is found as one node, which covers those that it was."""
    for _ in range(ROUNDS):
        nodes = dict(graph.nodes)
        gone: set[str] = set()
        for root in graph:
            found = _rewritten(graph, root) if root.name not in gone else None
            # What another match has swallowed in this round is not there to be read.
            if found is not None and not gone & {*found.covers, *found.sources}:
                names = {each for each in found.covers if each in nodes} | _inner(graph, found)
                nodes[root.name] = found
                gone |= names - {root.name}
        if not gone and nodes == graph.nodes:
            return graph
        graph = _read(Graph({name: node for name, node in nodes.items() if name not in gone}, graph.outputs))
    return graph


def _read(graph: Graph) -> Graph:
    """The graph without views that nothing reads any more."""
    while unread := {node.name for node in graph if node.op in VIEWS and not graph.readers(node.name)}:
        graph = Graph({node.name: node for node in graph if node.name not in unread}, graph.outputs)
    return graph


def _inner(graph: Graph, found: Node) -> set[str]:
    """The nodes of the graph that a new one stands for: some cover several of the framework's."""
    covered = set(found.covers)
    return {node.name for node in graph if set(node.stands_for) <= covered}


def _rewritten(graph: Graph, root: Node) -> Node | None:
    """The node that takes the place of ``root``, if there is one; a defect of ours leaves it as it is."""
    try:
        return _first_rewrite(graph, root)
    except Exception as error:
        defect(error, root.name)
        return None


def _first_rewrite(graph: Graph, root: Node) -> Node | None:
    if _is_the_same(graph, root):
        return None  # its input is a root of its own
    for rewrite in REWRITES:
        for match in _matches(graph, rewrite.pattern, root.name, {}):
            if not _is_closed(graph, match, root.name):
                continue
            made = rewrite.make(graph, root, match.bound)
            if made is not None:
                op, inputs, attrs = made
                covers = tuple(name for node in graph if node.name in match.nodes for name in node.stands_for)
                return replace(root, op=op, inputs=inputs, attrs=attrs, covers=covers, reason="")
    return None


def _is_closed(graph: Graph, match: Match, root: str) -> bool:
    return all(
        graph.readers(name) <= match.nodes and OUTPUT not in graph.readers(name) for name in match.nodes - {root}
    )


def _matches(graph: Graph, pattern: Pattern, value: Input, bound: Bound) -> Iterator[Match]:
    if isinstance(pattern, list):
        for each in pattern:
            yield from _matches(graph, each, value, bound)
    elif isinstance(pattern, str):
        if bound.get(pattern, value) == value:
            yield Match({**bound, pattern: value}, frozenset())
    elif isinstance(pattern, float):
        if isinstance(value, int | float) and math.isclose(value, pattern, rel_tol=CLOSE):
            yield Match(bound, frozenset())
    elif isinstance(value, str):
        node = graph[value]
        if _is_the_same(graph, node):
            for match in _matches(graph, pattern, node.inputs[0], bound):
                yield Match(match.bound, match.nodes | {value})
        elif _is(graph, node, pattern[0]):
            yield from _of_inputs(graph, pattern, node, bound)


def _is_the_same(graph: Graph, node: Node) -> bool:
    """Whether a node is its input."""
    return node.op == "identity" or (node.op == "expand" and node.shape == graph[node.sources[0]].shape)


def _of_inputs(graph: Graph, pattern: Pattern, node: Node, bound: Bound) -> Iterator[Match]:
    wanted = pattern[1:]
    given = tuple(node.inputs)[: len(wanted)]
    if len(given) < len(wanted) or any(each is not None for each in node.inputs[len(wanted) :]):
        return
    orders = [given, given[::-1]] if node.op in COMMUTATIVE and given[0] != given[1] else [given]
    for order in orders:
        partial = [Match(bound, frozenset({node.name}))]
        for each, value in zip(wanted, order, strict=True):
            partial = [
                Match(longer.bound, known.nodes | longer.nodes)
                for known in partial
                for longer in _matches(graph, each, value, known.bound)
            ]
        yield from partial


def _is(graph: Graph, node: Node, op: str) -> bool:
    """Whether a node is an operation of a pattern: ``mean`` and ``softmax`` are over the last axis."""
    rank = len(graph[node.sources[0]].shape or ()) if node.sources else 0
    if op == "mean":
        last = [axis % rank for axis in node.attrs["axes"]] == [rank - 1] if node.op == "reduce" and rank else False
        return last and node.attrs["kind"] == "mean" and bool(node.attrs["keep"])
    if op == "softmax":
        return node.op == op and rank > 0 and node.attrs["axis"] % rank == rank - 1
    return node.op == op


# -- patterns -------------------------------------------------------------------------------------------------------
def _halved(one_plus: Pattern) -> Pattern:
    """x * 0.5 * one_plus, in any order."""
    return [
        ("mul", ("mul", "x", one_plus), 0.5),
        ("mul", ("mul", "x", 0.5), one_plus),
        ("mul", "x", ("mul", one_plus, 0.5)),
    ]


def _squared(x: Pattern) -> Pattern:
    return [("square", x), ("mul", x, x)]


def _over_root(x: Pattern, square: Pattern) -> Pattern:
    """x / sqrt(square)."""
    return [
        ("mul", x, ("rsqrt", square)),
        ("div", x, ("sqrt", square)),
        ("mul", x, ("reciprocal", ("sqrt", square))),
        ("mul", x, ("div", 1.0, ("sqrt", square))),
    ]


GELU = _halved(("add", ("erf", [("div", "x", math.sqrt(2)), ("mul", "x", math.sqrt(0.5))]), 1.0))
CUBE = [("cube", "x"), ("mul", ("mul", "x", "x"), "x"), ("mul", ("square", "x"), "x")]
GELU_TANH = _halved(
    ("add", ("tanh", ("mul", ("add", "x", ("mul", CUBE, 0.044715)), math.sqrt(2 / math.pi))), 1.0)
)  # fmt: skip
SILU = ("mul", "x", ("sigmoid", "x"))


def _rooted(x: Pattern) -> Pattern:
    """x over the root of the mean of its squares."""
    return _over_root(x, ("add", ("mean", _squared(x)), "eps"))


WIDENED = ("cast", "x")
"""Halves are normalised in float32, and rounded before the weight or behind it."""
PLAIN_RMS_NORM = [_rooted("x"), ("cast", _rooted(WIDENED))]
RMS_NORM = [
    ("mul", "gamma", _rooted("x")),
    ("mul", "gamma", ("cast", _rooted(WIDENED))),
    ("cast", ("mul", "gamma", _rooted(WIDENED))),
]
CENTRED = ("sub", "x", ("mean", "x"))
PLAIN_NORM = _over_root(CENTRED, ("add", ("mean", _squared(CENTRED)), "eps"))
SCALED_NORM = ("mul", "gamma", PLAIN_NORM)
LAYER_NORM = ("add", SCALED_NORM, "beta")
ROTARY = ("add", ("mul", "x", "cos"), ("mul", ("cat", ("neg", ("part", "x")), ("part", "x")), "sin"))
"""The halves of the last axis turned as the two parts of a complex number."""
BATCHED = ("reshape", ("matmul", ("reshape", "x"), ("reshape", "y")))
"""A product of more than three axes, as PyTorch carries it out."""
PRODUCT = [
    ("matmul", ("mul", "q", "q_scale"), ("mul", "k", "k_scale")),
    ("matmul", ("mul", "q", "q_scale"), "k"),
    ("matmul", ("div", "q", "q_part"), "k"),
    ("matmul", "q", "k"),
]
SCALED = [("mul", PRODUCT, "scale"), ("div", PRODUCT, "part"), PRODUCT]
ATTENTION = ("matmul", ("softmax", [("add", SCALED, "mask"), SCALED]), "v")
WIDE_ATTENTION = ("cast", ("attention", ("cast", "q"), ("cast", "k"), ("cast", "v"), "mask"))
"""What PyTorch makes of attention for which a GPU has no kernel of its own."""


def _unary(op: str) -> Callable[[Graph, Node, Bound], Made]:
    return lambda graph, root, bound: (op, (bound["x"],), {}) if isinstance(bound["x"], str) else None


def _norm(op: str, *vectors: str) -> Callable[[Graph, Node, Bound], Made]:
    def make(graph: Graph, root: Node, bound: Bound) -> Made:
        eps, x = bound["eps"], bound["x"]
        if isinstance(eps, str) or eps is None or not all(_is_vector(graph, bound[name]) for name in vectors):
            return None
        if not isinstance(x, str) or graph[x].dtype != root.dtype or (not vectors and _is_scaled(graph, root)):
            return None
        if "beta" not in vectors and (_becomes_layer_norm(graph, root) or _is_narrowed(graph, root)):
            return None
        return op, (x, *(bound[name] for name in vectors)), {"rank": 1, "eps": float(eps)}

    return make


def _is_scaled(graph: Graph, root: Node) -> bool:
    """Whether what reads a value multiplies it by a vector: the norm with its weight is one operator."""
    reader = graph.only_reader(root.name)
    while reader is not None and reader.op in ("cast", "identity"):
        reader = graph.only_reader(reader.name)
    return reader is not None and reader.op == "mul" and any(_is_vector(graph, each) for each in reader.inputs)


def _becomes_layer_norm(graph: Graph, root: Node) -> bool:
    """Whether a value is what a layer norm adds its bias to: what is centred once is an RMS norm's input, too."""
    reader = graph.only_reader(root.name)
    while reader is not None and reader.op == "identity":
        reader = graph.only_reader(reader.name)
    if reader is None or reader.op != "add":
        return False
    found = _matches(graph, LAYER_NORM, reader.name, {})
    return any(_is_closed(graph, each, reader.name) and _is_vector(graph, each.bound["beta"]) for each in found)


def _is_narrowed(graph: Graph, root: Node) -> bool:
    """Whether a norm is that of short floats, of which it is all but the last cast."""
    reader = graph.only_reader(root.name)
    if reader is None or reader.op != "cast":
        return False
    found = _matches(graph, RMS_NORM, reader.name, {})
    return any(
        _is_closed(graph, each, reader.name) and graph[str(each.bound["x"])].dtype == reader.dtype for each in found
    )


def _is_vector(graph: Graph, value: Input) -> bool:
    return isinstance(value, str) and len(graph[value].shape or ()) == 1


def _attention(graph: Graph, root: Node, bound: Bound) -> Made:
    scale = 1.0
    for name in ("scale", "q_scale", "k_scale", "part", "q_part"):
        number = bound.get(name, 1.0)
        if isinstance(number, str) or not number:
            return None
        scale *= 1.0 / number if name.endswith("part") else number
    q, k, v, mask = bound["q"], bound["k"], bound["v"], bound.get("mask")
    if not all(isinstance(each, str) for each in (q, k, v)) or isinstance(mask, int | float):
        return None
    if isinstance(mask, str) and graph[mask].dtype == "bool":
        # It is added here, as 0 and 1; attention would hide by it.
        return None
    keys = graph.source(k)
    rank = len(keys.shape or ())
    if rank not in (3, 4, 5) or any(len(graph[str(each)].shape or ()) != rank for each in (q, v)):
        return None
    is_swapped = keys.op == "permute" and tuple(keys.attrs["order"]) == swapped(rank)
    # A plain softmax of a row that is hidden whole is NaN, and so is what is made of it.
    nan_rows = not graph.source(root.inputs[0]).attrs.get("safe", False)
    attrs = {"causal": False, "scale": scale, "transposed_keys": not is_swapped, "nan_rows": nan_rows}
    return "attention", (q, keys.inputs[0] if is_swapped else k, v, mask), attrs


def _narrow_attention(graph: Graph, root: Node, bound: Bound) -> Made:
    """Attention of short floats, of which products and sums are float32 anyway, and whose weights may be rounded.

    What a model casts to float32 by itself looks the same where PyTorch spells its attention out, and is rounded, too;
    a softmax that it writes itself is no safe one, and stays.
    """
    if graph[str(root.inputs[0])].dtype != "float32":
        return None
    attrs, mask = graph.source(root.inputs[0]).attrs, bound["mask"]
    dtypes = {graph[str(bound[name])].dtype for name in "qkv"} | (
        {graph[mask].dtype} if isinstance(mask, str) else set()
    )
    if attrs.get("nan_rows") is not False or dtypes != {root.dtype} or root.dtype not in SHORT_FLOATS:
        return None
    return "attention", (bound["q"], bound["k"], bound["v"], mask), attrs


def _batched(graph: Graph, root: Node, bound: Bound) -> Made:
    """A product for each of several leading axes, which were one axis on the way."""
    x, y = bound["x"], bound["y"]
    if not isinstance(x, str) or not isinstance(y, str):
        return None
    whole, left, right = root.shape, graph[x].shape, graph[y].shape
    if not whole or not left or not right or not 3 < len(whole) == len(left) == len(right):
        return None
    is_product = whole[:-2] == left[:-2] == right[:-2] and whole[-2:] == (left[-2], right[-1])
    inner = graph.source(root.inputs[0])
    rows = [graph.source(each).shape for each in inner.inputs[:2]]
    is_kept = all(flat and flat[1:] == each[-2:] for flat, each in zip(rows, (left, right), strict=True))
    return ("matmul", (x, y), {}) if is_product and is_kept and left[-1] == right[-2] else None


def _rotary(graph: Graph, root: Node, bound: Bound) -> Made:
    x, cos, sin = (bound[name] for name in ("x", "cos", "sin"))
    if not isinstance(x, str) or not isinstance(cos, str) or not isinstance(sin, str):
        return None
    # Of what is turned, and of its angles, any may be joined of parts, too.
    others = {graph.source(each).name for each in (x, cos, sin)}
    joined = next(node for node in _behind(graph, root, 2) if node.op == "cat" and node.name not in others)
    negated, lower = map(graph.source, joined.inputs)
    upper, shape = graph.source(negated.inputs[0]), graph[x].shape or ()
    size, last = (shape[-1].constant if shape else None), len(shape) - 1
    if not size or size % 2 or root.shape != shape or joined.attrs["axis"] % len(shape) != last:
        return None
    halves = [part(last, size // 2), part(last, 0)]
    is_halves = [dict(each.attrs) for each in (upper, lower)] == halves and upper.shape == lower.shape
    is_whole = joined.shape == shape and lower.shape is not None and lower.shape[-1].constant == size // 2
    return ("rotary", (x, cos, sin), {}) if is_halves and is_whole else None


def _behind(graph: Graph, node: Node, depth: int) -> Iterator[Node]:
    """The nodes that a node reads, and what these read, so many steps deep."""
    for each in map(graph.source, node.sources):
        yield each
        if depth > 1:
            yield from _behind(graph, each, depth - 1)


def _safe_softmax(graph: Graph, root: Node, bound: Bound) -> Made:
    axis = graph.source(root.inputs[2]).attrs["axis"]
    return "softmax", (bound["x"],), {"axis": axis, "safe": True}


def _unchanged(graph: Graph, root: Node, bound: Bound) -> Made:
    x = bound["x"]
    is_same = isinstance(x, str) and (graph[x].shape, graph[x].dtype) == (root.shape, root.dtype)
    return ("identity", (x,), {}) if bound["one"] == 1.0 and is_same else None


def _same_shape(graph: Graph, root: Node, bound: Bound) -> Made:
    x = bound["x"]
    return ("identity", (x,), {}) if isinstance(x, str) and root.shape and graph[x].shape == root.shape else None


def _transposed(graph: Graph, root: Node, bound: Bound) -> Made:
    """The last two axes the other way round, where the others were one axis on the way."""
    x = bound["x"]
    permuted = graph.source(root.inputs[0])
    flat = graph[permuted.sources[0]].shape
    before, after = graph[x].shape if isinstance(x, str) else None, root.shape
    if not before or not after or not flat or not len(flat) == 3 < len(before) == len(after):
        return None
    order = swapped(len(before))
    is_swapped = tuple(permuted.attrs["order"]) == swapped(3) and after == tuple(before[axis] for axis in order)
    return ("permute", (x,), {"order": order}) if is_swapped and flat[1:] == before[-2:] else None


REWRITES = (
    Rewrite(("reshape", ("permute", ("reshape", "x"))), _transposed),
    *(Rewrite((op, "x", "one"), _unchanged) for op in ("mul", "div")),
    *(Rewrite((op, "x"), _same_shape) for op in ("reshape", "expand")),
    Rewrite(("where", ("isnan", ("softmax", "x")), 0.0, ("softmax", "x")), _safe_softmax),
    Rewrite(BATCHED, _batched),
    *(Rewrite(*each) for each in BYTE_PATTERNS),
    Rewrite(GELU, _unary("gelu")),
    Rewrite(GELU_TANH, _unary("gelu_tanh")),
    Rewrite(SILU, _unary("silu")),
    Rewrite(LAYER_NORM, _norm("layer_norm", "gamma", "beta")),
    Rewrite(SCALED_NORM, _norm("layer_norm", "gamma")),
    Rewrite(PLAIN_NORM, _norm("layer_norm")),
    Rewrite(RMS_NORM, _norm("rms_norm", "gamma")),
    Rewrite(PLAIN_RMS_NORM, _norm("rms_norm")),
    Rewrite(ROTARY, _rotary),
    Rewrite(ATTENTION, _attention),
    Rewrite(WIDE_ATTENTION, _narrow_attention),
)
"""Tried in this order at every node."""
