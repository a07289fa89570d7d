"""The floating-point operations of a graph of ATen, as PyTorch counts them."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.utils.flop_counter import flop_registry

from shapewright.torch.grouped import grouped_mm

aten = torch.ops.aten
COUNTS = {
    **flop_registry,
    aten._int_mm: flop_registry[aten.mm],
    grouped_mm: lambda x, w, *_, **__: 2 * x.numel() * w.shape[-1],
    # PyTorch counts the operators of GPUs alone.
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
        2 * math.prod(q.shape[:-1]) * (k.shape[-2] * q.shape[-1] + v.shape[-2] * v.shape[-1])
    ),
}


def flops_by_name(graph: fx.Graph) -> dict[str, int]:
    """Operations of nodes that are products, convolutions or attention, at the known sizes; a multiply-add is two.

    An operator of several outputs is known by the node that reads its first one, as lifting has it.
    """
    counted = {node: count for node in graph.nodes if (count := _flops(node))}
    return {_first_output(node).name: count for node, count in counted.items()}


def _first_output(node: fx.Node) -> fx.Node:
    first = (user for user in node.users if user.target is operator.getitem and user.args[1] == 0)
    return next(first, node)


def _flops(node: fx.Node) -> int:
    count = COUNTS.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = (fx.map_arg(each, lambda one: _plain(one.meta.get("val"))) for each in (node.args, node.kwargs))
    return int(count(*args, **kwargs, out_val=_plain(node.meta.get("val"))))


def _plain(value: Any) -> Any:
    """A value without symbols: tensors of sizes alone, and the numbers that are known."""
    if isinstance(value, torch.Tensor):
        return torch.empty([_plain(size) for size in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return optimization_hint(value) if isinstance(value, torch.SymInt) else value
