"""Weights of four bits and of bytes that a model unpacks at each call: products read them as they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import shapewright as sw
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.replacing import Replacing, exported, same
from tests.shares import chosen

K, N, GROUP = 64, 24, 16
MASK = 15


def interleaved(packed: torch.Tensor) -> torch.Tensor:
    """Two numbers of each byte, the lower half first."""
    return torch.stack((packed & MASK, packed >> 4), -1).flatten(-2)


def of_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


class Packed(nn.Module):  # type: ignore[misc]
    """``unpack`` makes the weight [n, k] of three buffers: numbers, scales, zero points."""

    def __init__(
        self, unpack: Callable[..., torch.Tensor], weight: torch.Tensor, zeros: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.unpack = unpack
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(N, K // GROUP) + 0.5)
        self.register_buffer("zeros", zeros)
        self.bias = nn.Parameter(torch.rand(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.unpack(self.weight, self.scale, self.zeros), self.bias)


def scaled(numbers: torch.Tensor, scale: torch.Tensor, zero: Any) -> torch.Tensor:
    grouped = numbers.reshape(N, -1, GROUP)
    return ((grouped.to(scale.dtype) - zero) * scale.unsqueeze(-1)).reshape(N, K)


def in_halves(weight: torch.Tensor, scale: torch.Tensor, _: Any) -> torch.Tensor:
    """As GGUF has blocks: the lower halves of all bytes of a block, then the upper ones."""
    blocks = torch.cat((weight & MASK, weight >> 4), -1)
    return ((blocks.to(torch.int8) - 8).float() * scale.unsqueeze(-1)).view(N, K)


FORMS: dict[str, Callable[[], nn.Module]] = {
    "groups": lambda: Packed(lambda w, s, _: scaled(interleaved(w), s, 8), of_bytes(N, K // 2)),
    "zero points of bytes": lambda: Packed(
        lambda w, s, z: scaled(interleaved(w), s, z.unsqueeze(-1).float()), of_bytes(N, K // 2),
        torch.randint(0, 16, (N, K // GROUP), dtype=torch.uint8),
    ),
    "zero points of four bits": lambda: Packed(
        lambda w, s, z: scaled(interleaved(w), s, interleaved(z).unsqueeze(-1)), of_bytes(N, K // 2),
        of_bytes(N, K // GROUP // 2),
    ),
    "blocks in halves": lambda: Packed(in_halves, of_bytes(N, K // GROUP, GROUP // 2)),
    "bytes in groups": lambda: Packed(
        lambda w, s, _: scaled(w, s, 0), torch.randint(-128, 128, (N, K), dtype=torch.int8)
    ),
    "transposed twice": lambda: Packed(
        lambda w, s, _: scaled(interleaved(w), s, 8).t().contiguous().t(), of_bytes(N, K // 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", chosen(["zero points of four bits"], FORMS))
def test_a_weight_that_is_unpacked_at_each_call_is_read_as_it_lies(form: str, replacing: Replacing) -> None:
    torch.manual_seed(0)
    model = FORMS[form]()
    replacing.check(model, torch.rand(5, K))
    assert replacing.report.share == 1.0
    assert not replacing.report.kept
    assert len(replacing.report.replaced) == 1


@pytest.mark.parametrize("form", chosen(["blocks in halves"], FORMS))
def test_exported_models_hold_their_weights_as_they_lie(form: str, built: OnDemand) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(FORMS[form](), nn.SiLU()).eval()
    tasks = sw.extract(model, (torch.rand(2, 5, K),), ({0: torch.export.Dim("batch", max=8)},))
    assert not tasks.left
    (task,) = tasks
    assert {"uint8", "int8"} & {tensor.dtype for tensor in task.workload.inputs}
    exported(model, built, K)


def test_weights_and_scales_may_be_of_other_floats(replacing: Replacing) -> None:
    torch.manual_seed(0)
    # Sums of large numbers that cancel show how PyTorch rounds each weight.
    replacing.check(FORMS["groups"]().bfloat16(), 0.1 * torch.rand(5, K, dtype=torch.bfloat16))
    assert replacing.report.share == 1.0


def test_what_no_rule_takes_is_a_product_of_a_new_weight(replacing: Replacing) -> None:
    """Integers whose places depend on both axes, and scales of float64."""
    weight, scale = of_bytes(N, K), torch.rand(N, 1, dtype=torch.float64)

    class Odd(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", weight)
            self.register_buffer("scale", scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(x, (self.weight * self.scale).float())

    replacing.check(Odd(), torch.rand(5, K))


def test_two_layers_may_share_a_weight(replacing: Replacing) -> None:
    torch.manual_seed(0)
    layer = FORMS["groups"]()

    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = layer.unpack(layer.weight, layer.scale, layer.zeros)
        return functional.linear(x, weight), functional.linear(y, weight), weight.sum(0)

    inputs = torch.rand(5, K), torch.rand(3, K)
    with torch.no_grad():
        same(replacing.compiled(twice)(*inputs), twice(*inputs))


def test_weights_that_are_not_constant_stay_as_they_are(replacing: Replacing) -> None:
    def product(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, scaled(interleaved(packed), scale, 8))

    inputs = torch.rand(5, K), of_bytes(N, K // 2), torch.rand(N, K // GROUP)
    with torch.no_grad():
        same(replacing.compiled(product)(*inputs), product(*inputs))
    assert replacing.report.kept
