"""Numbers that change from call to call: operands of calls, not constants that make a new graph for each value.

TorchDynamo has such a float as a tensor without axes, and an int as a SymInt. Arithmetic takes either. An operator that
takes a number alone, such as ``leaky_relu``, would have a float read as a constant: it is spelled out by arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
ARITHMETIC = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def changing_numbers() -> dict[Any, Callable[..., Any]]:
    """Decompositions of what takes a number that changes; they leave alone what takes any other."""
    return {
        aten.leaky_relu.default: _leaky_relu,
        aten.clamp.default: _clamped,
        aten.clamp_min.default: lambda x, least: _clamped(x, least, None),
        aten.clamp_max.default: lambda x, most: _clamped(x, None, most),
        aten.add.Tensor: _added,
        aten.sub.Tensor: lambda x, y, *, alpha=1: _added(x, y, alpha=-alpha if _changes(alpha) else alpha),
        aten.rsub.Scalar: _subtracted_from,
    }


def integers_as_operands(module: fx.GraphModule) -> None:
    """Have arithmetic of float32 read a tensor without axes where it read an int that changes."""
    for node in module.graph.nodes:
        if node.target not in ARITHMETIC or node.kwargs or not _is_float32(node.meta.get("val")):
            continue
        for number in [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.SymInt)]:
            tensors = [each.meta["val"] for each in node.all_input_nodes if each is not number]
            if not any(_is_float32(value) for value in tensors):
                continue
            with module.graph.inserting_before(node):
                operand = module.graph.call_function(aten.scalar_tensor.default, (number,), {"dtype": torch.float32})
            operand.meta["val"] = node.meta["val"].new_empty(())
            node.replace_input_with(number, operand)


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim() > 0


def _changes(number: Any) -> bool:
    return isinstance(number, torch.SymFloat)


def _operand(x: torch.Tensor, number: Any) -> torch.Tensor:
    return x.new_zeros(()) + number


def _leaky_relu(x: torch.Tensor, slope: Any = 0.01) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope) if _changes(slope) else NotImplemented


def _clamped(x: torch.Tensor, least: Any = None, most: Any = None) -> torch.Tensor:
    if not (_changes(least) or _changes(most)):
        return NotImplemented
    if least is not None:
        x = torch.maximum(x, _operand(x, least))
    return x if most is None else torch.minimum(x, _operand(x, most))


def _added(x: torch.Tensor, y: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    dtype = torch.result_type(x, y)
    # ATen multiplies in float32 where the sum is of halves, and refuses integers.
    if not _changes(alpha) or dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return x + y.to(dtype) * alpha


def _subtracted_from(x: torch.Tensor, number: Any, alpha: Any = 1) -> torch.Tensor:
    if not _changes(number) or alpha != 1 or x.dtype is torch.bool:
        return NotImplemented
    # Before its sign changes: bytes without sign have none.
    return -x.to(torch.result_type(x, 1.0)) + number
