"""Operators that are decomposed into others: what these compute together, and what is lifted of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from tests.shapewright.models.checking import Formula, check_values, exported, labels, lifting_of

aten = torch.ops.aten


def _varied(layer: nn.Module) -> nn.Module:
    """With weights that differ between channels."""
    for each in layer.parameters():
        each.data = torch.linspace(0.5, 2.0, each.numel()).reshape(each.shape)
    return layer


def _activated(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.silu(norm(x))


X = torch.randn(3, 8, 12, 8)
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[nn.Module, ...], list[str] | None]] = {
    "several groups": (_activated, (_varied(nn.GroupNorm(4, 8)),), ["layer_norm + mul + add", "silu"]),
    "one group": (_activated, (_varied(nn.GroupNorm(1, 8)),), ["layer_norm + mul + add + silu"]),
    "groups of one channel": (_activated, (_varied(nn.GroupNorm(8, 8)),), ["layer_norm + mul + add + silu"]),
    "groups alone": (lambda norm, x: norm(x), (nn.GroupNorm(2, 8, affine=False),), ["layer_norm"]),
    "groups of rows": (lambda norm, x: norm(x.flatten(2)), (_varied(nn.GroupNorm(2, 8)),), ["layer_norm + mul + add"]),
    "groups of numbers": (lambda norm, x: norm(x[:, :, 0, 0]), (_varied(nn.GroupNorm(2, 8)),), None),
    "instances": (_activated, (_varied(nn.InstanceNorm2d(8, affine=True)),), ["layer_norm + mul + add + silu"]),
    "a norm of all axes but one": (lambda x: functional.layer_norm(x, x.shape[1:]), (), ["layer_norm"]),
    "instances alone": (functional.instance_norm, (), ["layer_norm"]),
    "sum with a product": (lambda x: torch.addcmul(x, x, x.sigmoid(), value=3).tanh(), (), None),
    "lengths": (lambda x: torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True), (), None),
    "lengths of all": (torch.linalg.vector_norm, (), None),
    "directions": (lambda x: functional.normalize(x, dim=1), (), None),
    "means of four": (lambda x: functional.adaptive_avg_pool2d(x, (6, 4)), (), ["avg_pool2d"]),
    "means of all": (lambda x: functional.adaptive_avg_pool2d(x, 1), (), ["reduce_mean"]),
    "maxima of four": (lambda x: functional.adaptive_max_pool2d(x, (6, 4)), (), ["max_pool2d"]),
    "maxima of all": (lambda x: functional.adaptive_max_pool2d(x, 1), (), ["reduce_max"]),
    "windows that differ": (lambda x: functional.adaptive_avg_pool2d(x, (5, 3)), (), []),
    "gated": (lambda x: functional.glu(x, 1), (), None),
    "gated along rows": (functional.glu, (), None),
    "pixels": (lambda x: functional.pixel_shuffle(x, 2).relu().exp(), (), None),
    "channels": (lambda x: functional.channel_shuffle(x, 2).relu().exp(), (), None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_operators_become_computes_what_they_do(name: str) -> None:
    function, layers, expected = OPERATORS[name]
    model = Formula(function, *layers).eval()
    program = exported(model, (X,), (({0: Dim("b", min=1, max=8)},),))
    lifting = lifting_of(program)
    for batch in (1, 5):
        x = torch.randn(batch, *X.shape[1:])
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-5)
        check_values(program, lifting, (x,))
    if expected is not None:
        assert labels(lifting) == expected


def test_statistics_and_places_are_returned_as_well() -> None:
    def statistics(weight: torch.Tensor, x: torch.Tensor) -> Any:
        norm = aten.native_group_norm(x, weight, weight, x.shape[0], 8, 96, 4, 1e-5)
        return *norm, *aten.adaptive_max_pool2d(x, [1, 1]), *aten.adaptive_max_pool2d(x, [3, 2])

    weight = torch.linspace(0.5, 2.0, 8)
    program = exported(Formula(lambda x: statistics(weight, x)), (X,), None)
    for found, right in zip(program.module()(X), statistics(weight, X), strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True)])
def test_norms_of_halves_stay_as_they_are(norm: nn.Module) -> None:
    program = exported(Formula(lambda norm, x: norm(x), norm).bfloat16(), (X.bfloat16(),), None)
    assert all("layer_norm" not in str(node.target) for node in program.graph.nodes)
