"""Sizes of 1 and 0 in a program that was exported for a range of sizes.

PyTorch traces such a program as if a size were 2 or more, whatever its range begins with. Where an operator does
something else for 1, as ``squeeze`` does, what was traced is not what the model computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses import FakeTensorMode


def other_shape(module: fx.GraphModule, inputs: Sequence[Any], sizes: Mapping[sympy.Symbol, Any]) -> str | None:
    """The first node of the graph whose shape is another one for these inputs than its symbolic one for ``sizes``; None
    if there is none. Nothing is computed."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in inputs]
    looking = _Shapes(module, sizes, mode)
    try:
        with mode, torch.no_grad():
            looking.run(*fakes)
    except Exception as error:  # whatever an operator says of shapes that do not fit
        first, *_ = str(error).splitlines() or [""]
        return f"{looking.at}: {first}"
    return looking.found


class _Shapes(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph, and compares shapes with those that were traced."""

    def __init__(self, module: fx.GraphModule, sizes: Mapping[sympy.Symbol, Any], mode: FakeTensorMode) -> None:
        super().__init__(module)
        self._sizes, self._mode, self.at = dict(sizes), mode, ""
        self.found: str | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.at = str(n)
        value = super().run_node(n)
        if self.found is None and not self._is_same(n.meta.get("val"), value):
            self.found = str(n)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        # A stand-in: an operator that writes to a buffer would write to the model's.
        value = super().get_attr(target, args, kwargs)
        return self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def _is_same(self, traced: Any, value: Any) -> bool:
        if isinstance(traced, list | tuple) and isinstance(value, list | tuple):
            return len(traced) == len(value) and all(map(self._is_same, traced, value))
        if not isinstance(traced, torch.Tensor) or not isinstance(value, torch.Tensor):
            return True
        return traced.dim() == value.dim() and all(map(self._is_size, traced.shape, value.shape))

    def _is_size(self, traced: int | torch.SymInt, size: int | torch.SymInt) -> bool:
        if not isinstance(traced, torch.SymInt):
            return traced == size
        expected = traced.node.expr.xreplace(self._sizes)
        # What depends on values is not known here.
        return bool(expected.free_symbols) or isinstance(size, torch.SymInt) or expected == size
