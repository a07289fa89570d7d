"""Layers that are quantised dynamically: rows to int8 at every call, by weights that are int8 for good."""

from __future__ import annotations

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
