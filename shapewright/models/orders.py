"""Layouts of values, for a whole graph: whether an image lies with its channels first (NCHW) or last (NHWC).

Models turn images (b, c, h, w) to rows of channels (b, h, w, c) for norms and products, and back for convolutions.
Where a convolution can write an image either way, its layout is chosen here: then it is not transposed between.
Only the time depends on it. What reads a value in another order than it lies in has it copied.
"""

from __future__ import annotations

import math
from typing import Literal

from shapewright.models.elementwise import ELEMENTWISE
from shapewright.models.graph import ONE, Graph, Node, Shape
from shapewright.models.lifted import View
from shapewright.models.views import grouped
from tuner.schedule.rules.stencil.pattern import MAX_TAPS

Order = tuple[int, ...]
RANKS = (3, 4, 5)
"""Of images with one to three spatial axes."""
SAME = ELEMENTWISE | {"cast", "identity"}
"""What gives a value as its inputs lie."""
MANY = 16
"""Channels that fill the widest vectors of float32, those of AVX-512. A first convolution of fewer input channels may
write channels last, and depthwise windows of fewer do not prefer them last."""
WINDOWS = frozenset({"max_pool", "avg_pool", "pad"})
"""What gives an image as its first input lies."""
Preference = Literal["last", "first", "either"]
LAST: Preference = "last"
FIRST: Preference = "first"
EITHER: Preference = "either"


def last(rank: int) -> Order:
    """The axes of an image whose channels come last."""
    return (0, *range(2, rank), 1)


def is_last(graph: Graph, node: Node) -> bool:
    """Whether the channels of an image come last in memory."""
    return node.shape is not None and len(node.shape) in RANKS and order_of(graph, node) == last(len(node.shape))


def order_of(graph: Graph, node: Node) -> Order:
    """The axes of a value as they lie, the outermost first."""
    return graph.once("orders", _orders)[node.name]


def lies(graph: Graph, node: Node, view: View) -> bool:
    """Whether a view takes the elements of a value as they lie."""
    shape, taken = graph.shape(node.name), [axis for group in view for axis in group]
    taken = [axis for axis in taken if shape[axis] != ONE]
    return taken == [axis for axis in order_of(graph, node) if axis in taken]


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether a convolution takes each channel by itself."""
    if node.op != "conv" or node.attrs["transposed"]:
        return False
    x, w = (graph[each].shape for each in node.sources[:2])
    if x is None or w is None or len(x) != len(w):
        return False
    groups = int(node.attrs["groups"])
    return groups > 1 and x[1] == w[0] and x[1].constant == groups and w[1] == ONE


def is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether a convolution is a product of the channels at each place of an image."""
    if not _is_of_all(node):
        return False
    pad, window = node.attrs["pad"], _window(graph, node)
    is_one = bool(window) and all(size == ONE for size in window)
    return is_one and set(node.attrs["stride"]) == {1} and not any((*pad, *node.attrs.get("behind", pad)))


def _is_of_all(node: Node) -> bool:
    """Whether a node is a convolution of all channels."""
    return node.op == "conv" and not node.attrs["transposed"] and node.attrs["groups"] == 1


def _may_turn(graph: Graph, node: Node) -> bool:
    """Whether a convolution of all channels is as fast if it reads them first and writes them last: one of single
    elements, of windows that do not overlap, or of few channels and a stride. Others are up to half as slow again, with
    minimal filtering on the other side (decision 57)."""
    if is_pointwise(graph, node):
        return True
    if not _is_of_all(node) or set(node.attrs["dilation"]) != {1}:
        return False
    channels, steps = graph.shape(node.sources[1])[1].constant or MANY, node.attrs["stride"]
    sizes = [size.constant or 0 for size in _window(graph, node)]
    are_apart = all(0 < size <= step for size, step in zip(sizes, steps, strict=False))
    return (max(sizes, default=0) > 1 and are_apart) or (channels < MANY and min(steps) > 1)


def _is_read_in_place(graph: Graph, node: Node) -> bool:
    """Whether windows of single channels are read where these lie if they come last (stencil/direct.py): in images,
    where it is known which positions along the innermost axis read padding."""
    shape, pad = graph.shape(node.sources[0]), node.attrs["pad"]
    is_known = shape[-1].constant is not None or not any((*pad, *node.attrs.get("behind", pad)))
    return len(shape) > RANKS[0] and is_known and (shape[1].constant or 0) >= MANY


def _window(graph: Graph, node: Node) -> Shape:
    """The sizes of a convolution's windows; of none where they are not known."""
    weight = graph[node.sources[1]].shape
    return () if weight is None else weight[2:]


def _orders(graph: Graph) -> dict[str, Order]:
    preferences, orders = _preferences(graph), dict[str, Order]()
    for node in graph:
        orders[node.name] = _order(graph, node, orders, preferences)
    return orders


def _order(graph: Graph, node: Node, orders: dict[str, Order], preferences: dict[str, Preference]) -> Order:
    if node.shape is None:
        return ()
    rank = len(node.shape)
    plain = tuple(range(rank))
    sources = [graph[each] for each in node.sources]
    if not sources or sources[0].shape is None:
        return plain
    if node.op == "permute":
        place = {axis: new for new, axis in enumerate(node.attrs["order"])}
        return tuple(place[axis] for axis in orders[sources[0].name])
    if node.op == "reshape":
        return reshaped(sources[0].shape, orders[sources[0].name], node.shape) or plain
    if rank not in RANKS:
        return plain
    preference, given = preferences[node.name], sources[:1]
    if node.op in SAME:
        given = [each for each in sources if each.shape == node.shape]
    elif node.op == "conv" and not _may_be_last(graph, node):
        if preference == LAST and _may_turn(graph, node):
            return last(rank)
        given = given if preference != FIRST and is_pointwise(graph, node) else []
    elif node.op not in WINDOWS and node.op != "conv":
        given = []
    # Of several that lie in either way some are transposed.
    agree = all if preference == FIRST else any
    return last(rank) if given and agree(orders[each.name] == last(rank) for each in given) else plain


def _may_be_last(graph: Graph, node: Node) -> bool:
    """Whether a convolution of single channels is as fast where they come last: with windows that can be unrolled."""
    if not is_depthwise(graph, node):
        return False
    window = [size.constant or MAX_TAPS + 1 for size in _window(graph, node)]
    return math.prod(window) <= MAX_TAPS


def reshaped(before: Shape, order: Order, after: Shape) -> Order | None:
    """The order of a value that is looked at with other sizes: axes that are parted, or that lie side by side joined;
    None where elements would have to move."""
    if (parted := grouped(after, before)) is not None:
        rest = [axis for axis in range(len(after)) if not any(axis in group for group in parted)]
        return (*(axis for old in order for axis in parted[old]), *rest)
    joined = grouped(before, after)
    if joined is None:
        return None
    result: list[int] = []
    position = 0
    while position < len(order):
        new = next((axis for axis, group in enumerate(joined) if order[position] in group), None)
        group = (order[position],) if new is None else joined[new]
        if order[position : position + len(group)] != group:
            return None
        result += [] if new is None else [new]
        position += len(group)
    return (*result, *(axis for axis in range(len(after)) if axis not in result))


# -- what readers prefer ----------------------------------------------------------------------------------------------
def _preferences(graph: Graph) -> dict[str, Preference]:
    """Which layout those who read a value prefer: LAST if one of them prefers channels last, and all others read it as
    fast so."""
    preferences: dict[str, Preference] = {}
    for node in reversed(list(graph)):
        readers = [graph.nodes.get(name) for name in graph.readers(node.name)]
        every = {FIRST if each is None else _preference(graph, each, node, preferences) for each in readers} or {FIRST}
        if node.shape is not None and all(size == ONE for size in node.shape[2:]):
            # One element of each channel lies the same in both ways.
            every = {EITHER}
        preferences[node.name] = next(preference for preference in (FIRST, LAST, EITHER) if preference in every)
    return preferences


def _preference(graph: Graph, reader: Node, node: Node, preferences: dict[str, Preference]) -> Preference:
    if node.shape is None or len(node.shape) not in RANKS:
        return FIRST
    if reader.op == "permute":
        return LAST if tuple(reader.attrs["order"]) == last(len(node.shape)) else FIRST
    if reader.op in SAME:
        return preferences[reader.name] if reader.shape == node.shape else FIRST
    if reader.op == "reshape":
        # The places of an image in a row, or of a row in an image.
        is_kept = reader.shape is not None and reader.shape[:2] == node.shape[:2]
        return preferences[reader.name] if is_kept else FIRST
    if reader.inputs[0] != node.name:
        return FIRST
    if reader.op == "reduce":
        axes = sorted(axis % len(node.shape) for axis in reader.attrs["axes"])
        return EITHER if axes == list(range(2, len(node.shape))) else FIRST
    if _may_be_last(graph, reader) and _is_read_in_place(graph, reader) and preferences[reader.name] == EITHER:
        return LAST
    is_kept = reader.op in WINDOWS or _may_be_last(graph, reader) or is_pointwise(graph, reader)
    return preferences[reader.name] if is_kept else FIRST
