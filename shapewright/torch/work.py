"""The floating-point operations of a graph of ATen, as PyTorch counts them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.utils.flop_counter import flop_registry


def flops(node: fx.Node) -> int:
    """Of a product, a convolution or an attention at the sizes at hand, a multiply-add as two; 0 for all others."""
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = (fx.map_arg(each, lambda one: _plain(one.meta.get("val"))) for each in (node.args, node.kwargs))
    return int(count(*args, **kwargs, out_val=_plain(node.meta.get("val"))))


def _plain(value: Any) -> Any:
    """A value without symbols: tensors of sizes alone, and what numbers are at hand."""
    if isinstance(value, torch.Tensor):
        return torch.empty([_plain(size) for size in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return optimization_hint(value) if isinstance(value, torch.SymInt) else value
