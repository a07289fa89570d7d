"""Operators that are decomposed, compiled with libraries: their values, and how these lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.shapewright.torch.replacing import Replacing

IMAGES = torch.randn(3, 8, 12, 8)
NORM = nn.GroupNorm(2, 8)
OF_ONE_BATCH = nn.BatchNorm2d(8, track_running_stats=False)

OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "groups": NORM,
    "groups, seen otherwise": lambda x: NORM(x).permute(0, 2, 3, 1).reshape(x.shape[0], 96, 8).exp(),
    "one batch": lambda x: OF_ONE_BATCH(x[:1]),
    "pixels": lambda x: functional.pixel_shuffle(x, 2),
    "pixels of what is made": lambda x: functional.pixel_shuffle(x.exp(), 2).permute(0, 2, 3, 1).exp(),
    "maxima": lambda x: functional.adaptive_max_pool2d(x, 1),
    "means": lambda x: functional.adaptive_avg_pool2d(x, (6, 4)),
    "lengths": lambda x: functional.normalize(x, dim=1),
    "gates": lambda x: functional.glu(x, 1),
    "sums with products": lambda x: torch.addcmul(x, x, x.contiguous().exp(), value=2),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_values_lie_as_they_do_in_eager(name: str, replacing: Replacing) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        replacing.check(OPERATORS[name], IMAGES.contiguous(memory_format=layout), replaced=0)


def test_views_of_values_in_channels_last(replacing: Replacing) -> None:
    x = IMAGES.contiguous(memory_format=torch.channels_last)
    replacing.check(lambda x: NORM(x).permute(0, 2, 3, 1).view(x.shape[0], -1), x, replaced=0)
    replacing.check(lambda x: NORM(x).as_strided((3, 96, 8), (768, 8, 1)), x, replaced=0)


def test_logarithms_of_one_and_little_more(replacing: Replacing) -> None:
    """A softplus is never 0: what divides by it, or takes its logarithm, is finite."""
    x = torch.linspace(-40, 40, 6 * 64).reshape(6, 64)
    for function in (
        lambda x: functional.softplus(x * 1.0).log(),
        lambda x: (-functional.logsigmoid(x * 1.0)).log(),
        lambda x: functional.mish(x * 1.0) / x,
    ):
        replacing.check(function, x)
    special = torch.tensor([[float("inf"), -float("inf"), float("nan"), 0.0]]).repeat(6, 16)
    for activation in (functional.softplus, functional.logsigmoid, functional.mish):
        replacing.check(lambda x, own=activation: own(x * 1.0), special)


PRODUCTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "scores": ("bhid,bhjd->bhij", (2, 3, 5, 8), (2, 3, 7, 8)),
    "scores of heads behind": ("bihd,bjhd->bhij", (2, 5, 3, 8), (2, 7, 3, 8)),
    "values": ("bhij,bjhd->bihd", (2, 3, 5, 7), (2, 7, 3, 8)),
    "rows": ("...d,d->...", (2, 5, 8), (8,)),
    "a layer": ("bid,od->bio", (2, 5, 8), (6, 8)),
    "a layer of heads": ("bid,hdk->bhik", (2, 5, 8), (3, 8, 4)),
    "from heads": ("bhik,hkd->bid", (2, 3, 5, 4), (3, 4, 8)),
    "in another order": ("bid,od->obi", (2, 5, 8), (6, 8)),
    "no output": ("ij,jk", (2, 5), (5, 4)),
    "no output, of other letters": ("zj,ja", (2, 5), (5, 4)),
    "broadcast": ("bid,bjd->bij", (2, 5, 8), (1, 7, 8)),
    "by elements": ("bi,bi->bi", (2, 5), (2, 5)),
    "outer": ("bi,bj->bij", (2, 5), (2, 7)),
    "summed alone": ("bij,bjk->bk", (2, 5, 8), (2, 8, 4)),
    "diagonal": ("bii,bij->bij", (2, 5, 5), (2, 5, 4)),
    "several summed": ("bhij,bhjk->ik", (2, 3, 5, 8), (2, 3, 8, 4)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_einsum(name: str, replacing: Replacing) -> None:
    equation, x, y = PRODUCTS[name]
    replacing.check(lambda x, y: torch.einsum(equation, x, y), torch.randn(x), torch.randn(y), replaced=0)


def test_other_forms_of_einsum(replacing: Replacing) -> None:
    x, y, z = torch.randn(2, 5), torch.randn(5, 4), torch.randn(4, 3)
    replacing.check(lambda x, y: torch.einsum("ij,jk->ik", [x, y]), x, y, replaced=0)
    replacing.check(lambda x, y: torch.einsum(x, [0, 1], y, [1, 2], [0, 2]), x, y, replaced=0)
    replacing.check(lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z), x, y, z, replaced=0)
    replacing.check(lambda x: torch.einsum("ij->ji", x).exp(), x, replaced=0)
    replacing.check(lambda x: torch.einsum("ii->i", x[:2, :2]), x, replaced=0)


def test_attention_by_einsum_is_one_call(replacing: Replacing) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * 8**-0.5
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)

    replacing.check(attention, *(torch.randn(2, 3, 5, 8) for _ in range(3)))
    assert [str(each.workload).partition("(")[0] for each in replacing.report.replaced] == ["attention"]


def test_attention_of_five_axes_with_a_bias_is_one_call(replacing: Replacing) -> None:
    """Windows of images: groups of them, heads, elements (MaxViT)."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("BGHID,BGHJD->BGHIJ", q, k * 8**-0.5)
        mixed = torch.einsum("BGHIJ,BGHJD->BGHID", (scores + bias).softmax(-1), v)
        return mixed.permute(0, 1, 3, 2, 4).reshape(*mixed.shape[:2], 7, -1)

    rows = [torch.randn(2, 3, 4, 7, 8) for _ in range(2)]
    for width in (8, 5):
        replacing.check(attention, *rows, torch.randn(2, 3, 4, 7, width), torch.randn(1, 4, 7, 7))
        assert "attention" in str(replacing.report.replaced[0].workload)
