"""Layers that are quantised dynamically: rows to int8 at every call, by weights that are int8 for good."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LEAST = 1e-5
"""The least amount of a row by which it is scaled: rows may be zeros."""
LIMITS = (-128, 127)


def quantised(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as int8, and the scale of each."""
    scales = rows.abs().amax(-1, keepdim=True).clamp(min=LEAST) / 127.0
    return torch.clamp(torch.round(rows / scales), *LIMITS).to(torch.int8), scales


class Linear(nn.Module):  # type: ignore[misc]
    """A linear layer; ``is_explicit``: its sums are cast before they are scaled, and not as they are."""

    def __init__(self, k: int, n: int, *, bias: bool = True, is_explicit: bool = True) -> None:
        super().__init__()
        weight, scales = quantised(torch.randn(n, k))
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales.reshape(n))
        self.bias = nn.Parameter(torch.randn(n)) if bias else None
        self.is_explicit = is_explicit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, scales = quantised(x.reshape(-1, x.shape[-1]))
        sums = torch._int_mm(rows, self.weight.t())
        out = (sums.to(torch.float32) if self.is_explicit else sums) * scales * self.scales
        out = out if self.bias is None else out + self.bias
        return out.reshape(*x.shape[:-1], -1)


def perceptron() -> nn.Module:
    """Two layers of ragged sizes."""
    torch.manual_seed(0)
    return nn.Sequential(Linear(50, 33), nn.GELU(), Linear(33, 17, bias=False, is_explicit=False)).eval()


def rows_of(count: int, *lead: int) -> torch.Tensor:
    """Inputs of the perceptron, every third row of zeros."""
    rows = torch.randn(count, *lead, 50)
    rows[2::3] = 0.0
    return rows


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A weight as torchao has it: a tensor that wraps bytes and their scales, and says how a layer multiplies by it."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scales: torch.Tensor) -> Wrapped:
        kept: Wrapped = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scales.dtype)
        kept.codes, kept.scales = codes, scales
        return kept

    def __repr__(self, **_: Any) -> str:
        return f"Wrapped({self.codes!r}, {self.scales!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, *_: Any) -> Wrapped:
        return cls(inner["codes"], inner["scales"])

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.linear:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs or {})
        x, weight, bias = args
        (rows, scales), columns = shifted(x), weight.codes.t()
        # 128 was added to each number of a row.
        sums = torch._int_mm(rows, columns) - columns.sum(0, keepdim=True, dtype=torch.int32) * 128
        return sums.float() * scales * weight.scales.flatten() + bias

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(f"{function} of weights that are quantised")


def shifted(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as uint8, by a scale for each; 0 is its zero point, and 128 is added for CPUs."""
    low = torch.minimum(rows.amin(-1, keepdim=True), torch.zeros_like(rows[:, :1]))
    high = torch.maximum(rows.amax(-1, keepdim=True), torch.zeros_like(rows[:, :1]))
    scales = (torch.maximum(-low, high) / 127.5).clamp(min=LEAST)
    zeros = torch.full_like(scales, 0).to(torch.int8)
    codes = torch.clamp(torch.round(rows * (1.0 / scales)) + zeros, *LIMITS).to(torch.int8)
    return (codes.to(torch.int32) + 128).to(torch.uint8), scales


def wrapped() -> nn.Module:
    """Two layers whose weights are of a class of their own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 33), nn.GELU(), nn.Linear(33, 17)).eval()
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Wrapped(*quantised(layer.weight.detach())), requires_grad=False)
    return model
