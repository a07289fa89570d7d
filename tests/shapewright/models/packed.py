"""Models of ``torch.ao.quantization.quantize_dynamic``, whose layers have packed weights, and inputs for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.intrinsic import LinearReLU

K, HIDDEN, N = 50, 33, 17

AFFINE = quantization.QConfig(
    activation=quantization.default_dynamic_quant_observer,
    weight=quantization.MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_affine),
)
"""Weights with a zero point."""
KINDS: Mapping[str, Any] = {
    "one scale": quantization.default_dynamic_qconfig,
    "a scale for each column": quantization.per_channel_dynamic_qconfig,
    "zero points": AFFINE,
    "float16": quantization.float16_dynamic_qconfig,
}
INPUTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "normal": torch.randn,
    "halves": lambda *shape: torch.randint(-3, 4, shape) * 0.5,
    "zeros": torch.zeros,
    "one number": lambda *shape: torch.full(shape, 3.7),
    "a negative number": lambda *shape: torch.full(shape, -3.7),
    "positive": torch.rand,
    "negative": lambda *shape: -torch.rand(*shape),
    "small": lambda *shape: torch.randn(*shape) * 1e-4,
    "small and positive": lambda *shape: torch.rand(*shape) * 1e-4,
    "small and negative": lambda *shape: torch.rand(*shape) * -1e-4,
    "without a reciprocal": lambda *shape: torch.randn(*shape) * 1e-42,
    "large": lambda *shape: torch.randn(*shape) * 1e36,
}
"""``halves`` stand between two bytes."""


def quantised(model: nn.Module, kind: Any = "one scale", layers: Any = (nn.Linear,)) -> nn.Module:
    """``model`` with ``layers`` quantised, by PyTorch. ``kind``: of KINDS, or a configuration."""
    config = KINDS.get(kind, kind) if isinstance(kind, str) else kind
    with warnings.catch_warnings():
        # PyTorch says that this is to move to another package, and that weights reach the ends of their range.
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(model.eval(), dict.fromkeys(layers, config))


def packed(kind: Any = "one scale") -> nn.Module:
    """Two layers of ragged sizes; weights that are all positive, so that zero points are none of 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(K, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, N, bias=False))
    with torch.no_grad():
        model[0].weight.add_(0.05)
    return quantised(model, kind)


def with_relu() -> nn.Module:
    """A layer with its activation in the same operator."""
    torch.manual_seed(0)
    return quantised(nn.Sequential(LinearReLU(nn.Linear(K, N), nn.ReLU())), layers=(LinearReLU,))
