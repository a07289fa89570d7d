"""Floats that TorchDynamo makes inputs of the graph (SymFloats): an epsilon that a module keeps, ``math.pi``.

With ``dynamic=True`` it does so for every float, which hides norms and activations that are spelled out with them. An
attribute of a module and a global variable are specialised instead, under TorchDynamo's own guard. One that goes on
changing stays an input, and so do arguments of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._dynamo.exc import RestartAnalysis, TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import CompileContext, GuardSource
from torch.fx.experimental.symbolic_shapes import SymT, symbol_is_type

OF_MODELS = frozenset({
    GuardSource.GLOBAL,
    *(each for each in GuardSource if each.is_unspecialized_nn_module() or each.is_specialized_nn_module()),
})  # fmt: skip
"""The guard sources of module attributes and of globals."""
MAX_VALUES = 3
"""Values of one number before it counts as one that changes: models of one class share their code."""
MAX_KNOWN = 4096
_known: dict[tuple[int, str], set[float]] = {}
"""The values that were specialised, by frame and source."""
_forced: set[str] = set()
"""The symbols that are specialised in the compilation that is under way."""


@contextmanager
def read_as_constants(graph: torch.fx.GraphModule) -> Iterator[None]:
    """A context for the compilation of ``graph``, in which the numbers of the model are constants.

    Raises TensorifyScalarRestartAnalysis where they are not yet: TorchDynamo traces again.
    """
    names = [name for node in graph.graph.nodes if node.op == "placeholder" and (name := _symbol(node)) is not None]
    for name in names:
        TensorifyState.specialize(name)
    _forced.update(names)
    if names:
        raise TensorifyScalarRestartAnalysis
    try:
        yield
    except RestartAnalysis:
        # Of another number: the graph comes again, and needs these once more.
        raise
    except BaseException:
        _forget()
        raise
    _forget()


def _forget() -> None:
    """Later graphs may have other numbers by the names of these symbols."""
    TensorifyState.force_specializations.difference_update(_forced)
    _forced.clear()


def _symbol(node: torch.fx.Node) -> str | None:
    """The symbol of a number that is to be a constant."""
    argument, context = node.meta.get("grapharg"), CompileContext.try_get()
    memo = getattr(node.meta.get("example_value"), "item_memo", None)
    if memo is None or argument is None or context is None or context.compile_id is None:
        return None
    symbol, source = memo.node._expr, argument.source
    if not symbol.is_Symbol or not symbol_is_type(symbol, SymT.FLOAT) or source.guard_source not in OF_MODELS:
        return None
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    values = _known.setdefault((context.compile_id.frame_id, source.name), set())
    if TensorifyState.should_specialize(symbol.name) or len(values | {memo.node.hint}) > MAX_VALUES:
        return None
    values.add(memo.node.hint)
    return str(symbol.name)
