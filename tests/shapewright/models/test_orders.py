"""Which images have their channels last in memory, and that views of values keep track of how these lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from shapewright.models.orders import reshaped
from tests.shapewright.models.checking import labels, lifted
from tuner.program.language.dims import DimExpr

X = torch.randn(2, 6, 12, 12)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def block(dw: nn.Module, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + linear(rows(dw(x))).permute(0, 3, 1, 2)


def scaled(gate: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(gate(x.mean((2, 3), keepdim=True)))


def channelwise(size: int, channels: int = 6) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels)


CASES: dict[str, tuple[Callable[..., Any], tuple[nn.Module, ...], list[str]]] = {
    "windows of single channels before rows": (
        lambda dw, x: functional.layer_norm(rows(dw(x)), (6,)),
        (channelwise(3),), ["depthwise_conv2d + bias", "layer_norm"],
    ),
    "patches before rows": (
        lambda patches, x: functional.layer_norm(rows(patches(x)), (6,)),
        (nn.Conv2d(6, 6, 2, stride=2),), ["conv + bias", "layer_norm"],
    ),
    "windows that overlap before rows": (
        lambda conv, x: functional.layer_norm(rows(conv(x)), (6,)),
        (nn.Conv2d(6, 6, 3),), ["conv2d + bias", "layer_norm"],
    ),
    "a residual of rows": (
        lambda patches, dw, linear, x: rows(block(dw, linear, patches(x))),
        (nn.Conv2d(6, 6, 2, stride=2), channelwise(3), nn.Linear(6, 6)),
        ["conv + bias", "conv2d(nhwc) + bias", "dense + bias + add"],
    ),
    "a residual that is returned": (
        lambda patches, dw, linear, x: block(dw, linear, patches(x)),
        (nn.Conv2d(6, 6, 2, stride=2), channelwise(3), nn.Linear(6, 6)),
        ["conv2d + bias", "depthwise_conv2d + bias", "dense + bias"],
    ),
    "a product at each place, of rows": (
        lambda linear, one, x: rows(torch.relu(one(linear(rows(x)).permute(0, 3, 1, 2)))),
        (nn.Linear(6, 6), nn.Conv2d(6, 8, 1)), ["dense + bias", "dense + bias + relu"],
    ),
    "a product at each place, and of the padding around rows": (
        lambda linear, one, x: rows(one(functional.pad(linear(rows(x)).permute(0, 3, 1, 2), (1, 1, 1, 1)))),
        (nn.Linear(6, 6), nn.Conv2d(6, 8, 1)), ["dense + bias", "conv2d(nhwc) + bias"],
    ),
    "a product at each place, of an image": (
        lambda one, x: functional.layer_norm(rows(one(x)), (8,)),
        (nn.Conv2d(6, 8, 1),), ["conv + bias", "layer_norm"],
    ),
    "windows of single channels between products": (
        lambda stem, one, dw, back, x: back(dw(one(stem(x)))).mean((2, 3)),
        (nn.Conv2d(6, 6, 3, stride=2), nn.Conv2d(6, 16, 1), channelwise(3, 16), nn.Conv2d(16, 6, 1)),
        ["conv + bias", "dense + bias", "conv2d(nhwc) + bias", "dense + bias", "reduce"],
    ),
    "windows of single channels after those of all": (
        lambda conv, one, dw, x: dw(one(conv(x))).mean((2, 3)),
        (nn.Conv2d(6, 6, 3), nn.Conv2d(6, 16, 1), channelwise(5, 16)),
        ["conv2d + bias", "conv + bias", "conv2d(nhwc) + bias", "reduce"],
    ),
    "windows of single channels before those of all": (
        lambda one, dw, conv, x: conv(dw(one(x))).mean((2, 3)),
        (nn.Conv2d(6, 16, 1), channelwise(3, 16), nn.Conv2d(16, 6, 3)),
        ["conv2d + bias", "depthwise_conv2d + bias", "conv2d + bias", "reduce_mean"],
    ),
    "windows of few channels between products": (
        lambda one, dw, back, x: back(dw(one(x))).mean((2, 3)),
        (nn.Conv2d(6, 8, 1), channelwise(3, 8), nn.Conv2d(8, 6, 1)),
        ["conv2d + bias", "depthwise_conv2d + bias", "conv2d + bias", "reduce_mean"],
    ),
    "channels that are scaled between windows of single ones": (
        lambda one, dw, gate, x: dw(scaled(gate, one(x))).mean((2, 3)),
        (nn.Conv2d(6, 16, 1), channelwise(3, 16), nn.Conv2d(16, 16, 1)),
        ["conv + bias", "reduce", "conv2d + bias + sigmoid", "mul", "conv2d(nhwc) + bias", "reduce"],
    ),
    "means of channels": (
        lambda linear, x: linear(rows(x)).permute(0, 3, 1, 2).mean((2, 3)),
        (nn.Linear(6, 6),), ["dense + bias", "reduce"],
    ),
    "pooling of rows": (
        lambda linear, x: rows(functional.max_pool2d(linear(rows(x)).permute(0, 3, 1, 2), 3)),
        (nn.Linear(6, 6),), ["dense + bias", "max_pool"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_where_channels_come_last(name: str) -> None:
    """Each program is compared with PyTorch as it is lifted."""
    function, layers, wanted = CASES[name]
    found = lifted(function, X, layers=layers)
    texts = [op.workload.label for op in found.ops]
    marked = [f"{label[: label.index(' +')]}(nhwc){label[label.index(' +') :]}" if "nhwc" in text else label
              for label, text in zip(labels(found), texts, strict=True)]  # fmt: skip
    assert marked == wanted
    # One addition alone is not worth a kernel.
    assert all(each.op == "add" for each in found.left)


def test_windows_too_large_to_be_unrolled_have_channels_first() -> None:
    layers = nn.Linear(6, 6), channelwise(13)
    found = lifted(lambda linear, dw, x: rows(dw(linear(rows(x)).permute(0, 3, 1, 2))), X, layers=layers)
    assert labels(found) == ["dense + bias"]
    assert "a window of 169 elements is too large" in found.left[0].reason


# -- views ------------------------------------------------------------------------------------------------------------
@st.composite
def looks(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Sizes, the order in which a value lies, and sizes by which it is looked at: axes are parted, or joined."""
    groups = draw(st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=3), min_size=1, max_size=3))
    fine, coarse = [size for group in groups for size in group], [int(np.prod(group)) for group in groups]
    before, after = (fine, coarse) if draw(st.booleans()) else (coarse, fine)
    return before, draw(st.permutations(range(len(before)))), after


@given(looks())
def test_the_order_of_a_value_that_is_looked_at_with_other_sizes(case: tuple[list[int], list[int], list[int]]) -> None:
    before, order, after = case
    count = int(np.prod(before))
    value = np.arange(count).reshape([before[axis] for axis in order]).transpose(np.argsort(order)).reshape(after)
    found = reshaped(tuple(map(DimExpr.of, before)), tuple(order), tuple(map(DimExpr.of, after)))
    if found is not None:
        assert list(value.transpose(found).reshape(-1)) == list(range(count))
        return
    every = itertools.permutations(range(len(after)))
    assert not any(np.array_equal(value.transpose(each).reshape(-1), np.arange(count)) for each in every)
