"""Sizes that TorchDynamo takes for dynamic and that the libraries of a model have as constants.

With ``dynamic=True`` every size of an input is a symbol: an image's height beside the batch. Libraries that were tuned
for one height and every batch fit if the height is read as a constant, under a guard: other heights are then compiled
anew. That is done where it has most of the work replaced, and never for a size that the user marked as dynamic.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from shapewright.models.fx import graph_of
from shapewright.models.fx_operators import ATTENTION
from shapewright.models.lifted import Lifting
from shapewright.models.lifting import lift_graph
from shapewright.sources.finder import Finder

ENOUGH = 0.9
"""The part of the operations that have libraries as they are, from which on no other sizes are tried."""
MAX_FIXED = 2
"""Symbols that are read as constants at once. Height and width of a square image are one."""
MAX_TRIED = 16
"""Choices of symbols: for each the graph is lifted, and the sources are queried."""


def fix_sizes(
    module: fx.GraphModule, constants: Collection[str], finder: Finder, lifting: Lifting, whole: int
) -> list[str]:
    """Read as constants the sizes that libraries have so. Returns what a report has to say about them.

    ``lifting``: the graph's, as it is; ``whole``: its floating-point operations.
    """
    sizes, marked = _backed(module), _marked(module)
    free = [symbol for symbol in sizes if symbol not in marked]
    values = {symbol: int(size.node.hint) for symbol, size in sizes.items()}
    fixed: tuple[str, ...] = ()
    most = _replaced(lifting, values, finder) if free else 0
    if not free or (most > 0 and most >= ENOUGH * whole):
        return []
    for some in itertools.islice(_subsets(free), MAX_TRIED):
        graph = graph_of(module, constants, {symbol: values[symbol] for symbol in some})
        work = _replaced(lift_graph(graph), values, finder)
        if work > most:
            most, fixed = work, some
    for symbol in fixed:
        # An int of it is what it is under a guard.
        int(sizes[symbol])
    return [
        f"a size of {values[symbol]} is read as a constant, as the libraries have it: others are compiled anew"
        for symbol in fixed
    ]


def agree(module: fx.GraphModule) -> None:
    """Have the keys and values of each attention be of one length where they have a symbol each, as parts of a cache.

    The operator computes nothing of sense otherwise, so the guard that this adds costs no compilation.
    """
    for node in module.graph.nodes:
        if str(node.target) in ATTENTION:
            keys, values = (node.args[place].meta["val"].shape for place in (1, 2))
            for one, other in zip(keys[:3], values[:3], strict=True):
                if _hint(one) == _hint(other) is not None:
                    # A bool of it is what it is under a guard.
                    bool(one == other)


def _hint(size: Any) -> int | None:
    """The value of a size in this call; None where it is not known."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


def _subsets(symbols: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(1, MAX_FIXED + 1):
        yield from itertools.combinations(symbols, count)


def _backed(module: fx.GraphModule) -> dict[str, torch.SymInt]:
    """The symbols of the sizes of inputs whose value is known here."""
    found: dict[str, torch.SymInt] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.has_hint():
                found.setdefault(str(size.node.expr), size)
    return found


def _marked(module: fx.GraphModule) -> set[str]:
    """The symbols of dims that are dynamic by the user's own word, ``torch._dynamo.mark_dynamic``."""
    marked: set[str] = set()
    for tracked in _tracked(module):
        constraints: Any = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for size, constraint in zip(getattr(tracked.fake, "shape", ()), constraints, strict=False):
            if constraint is not None and isinstance(size, torch.SymInt):
                marked |= set(map(str, size.node.expr.free_symbols))
    return marked


def _tracked(module: fx.GraphModule) -> Sequence[Any]:
    for node in module.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env.tracked_fakes or ()
    return ()


def _replaced(lifting: Lifting, values: Mapping[str, int], finder: Finder) -> int:
    """The floating-point operations that have libraries, at the sizes of this call."""
    lifted = [op.workload for op in lifting.ops if op.workload.variables <= set(values)]
    found = [workload for workload in lifted if finder.has(workload)]
    return sum(workload.flops(workload.dims(values)) for workload in found)
