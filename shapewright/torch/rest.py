"""How much of a graph is left to Inductor beside calls of libraries.

Inductor shares each of its loops among all threads, and every thread then waits for every other at the end of each.
Where the loops are few that takes longer than they do, and on a machine with other work a thousand times as long, since
a thread may find no core for milliseconds. The loops of tuned libraries wait for nobody who is late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint

from shapewright.torch.chain_op import chain
from shapewright.torch.op import call
from shapewright.torch.repeats import is_view

CALLS = (call, chain)
LITTLE = 0.1
"""The part of all elements that loops may make for one thread to take them. A call reads each of its elements several
times, so this is a smaller part of the time."""


def is_little(graph: fx.Graph) -> bool:
    """Whether what is left takes little of the time, at the sizes that the graph was traced with."""
    calls = rest = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in CALLS:
            calls += _elements([node, *node.all_input_nodes])
        elif not is_view(node):
            rest += _elements([node])
    return rest <= LITTLE * (calls + rest)


def _elements(nodes: Iterable[fx.Node]) -> int:
    return sum(map(_of, (node.meta.get("val") for node in nodes)))


def _of(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_of, value))
    return int(optimization_hint(math.prod(value.shape))) if isinstance(value, torch.Tensor) else 0
