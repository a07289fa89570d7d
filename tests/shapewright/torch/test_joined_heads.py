"""Attention of PyTorch's models that reads heads where one product has put them: right, in one chain, and copied by
nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from shapewright.torch.chain import Chain
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import HEADS, WIDTH, close
from tests.shapewright.torch.replacing import Replacing, exported
from tests.shares import chosen, every

pytestmark = pytest.mark.usefixtures("made")
RESTS = ("eager", "inductor")


class Joined(nn.Module):  # type: ignore[misc]
    """GPT-2's attention; ``extra`` is what else it returns."""

    def __init__(self, extra: str = "", bias: bool = True) -> None:
        super().__init__()
        self.joined, self.out, self.extra = nn.Linear(WIDTH, 3 * WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH), extra

    def forward(self, x: torch.Tensor) -> Any:
        y = self.joined(x)
        q, k, v = (_heads(each) for each in y.split(WIDTH, -1))
        if self.extra == "written to":
            k.mul_(2.0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        out = self.out(mixed) + x
        return {"": out, "written to": (out, y), "keys": (out, k, v), "all": (out, y)}.get(self.extra, out)


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


@pytest.mark.parametrize("rest", every(2, RESTS))
def test_a_model_is_one_chain_in_which_nothing_is_copied(
    rest: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    model = Joined().eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest=rest)
        for batch, length in ((2, 7), (3, 5), (2, 13)):
            x = torch.rand(batch, length, WIDTH)
            assert close(fast(x), model(x))
    assert [len(each.calls) for each in made.values()] == [3]
    (attention,) = (each for each in replacing.report.replaced if each.workload.startswith("attention"))
    assert attention.strided == ()
    assert attention.copies == {}


@pytest.mark.parametrize("extra", ["keys", "all", "written to"])
@pytest.mark.parametrize("rest", chosen(["eager"], RESTS))
def test_what_else_a_model_does_with_heads_is_as_it_was(extra: str, rest: str, replacing: Replacing) -> None:
    replacing.check(Joined(extra).eval(), torch.rand(2, 7, WIDTH), rest=rest, replaced=2)


@pytest.mark.parametrize("dtype", chosen([torch.bfloat16], [torch.bfloat16, torch.float16]))
def test_heads_of_halves(dtype: torch.dtype, replacing: Replacing) -> None:
    replacing.check(Joined().eval().to(dtype), torch.rand(2, 7, WIDTH, dtype=dtype), replaced=3)


def test_heads_that_an_input_brings_may_lie_anyhow(replacing: Replacing) -> None:
    def function(y: torch.Tensor) -> torch.Tensor:
        q, k, v = (_heads(each) for each in y.split(WIDTH, -1))
        return functional.scaled_dot_product_attention(q, k, v)

    y = torch.rand(2, 7, 3 * WIDTH)
    replacing.check(function, y)
    replacing.check(function, y.transpose(0, 1))
    replacing.check(function, torch.rand(2, 7, 4 * WIDTH)[..., : 3 * WIDTH])


def test_self_attention_of_pytorchs_own_module(replacing: Replacing) -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).train()
    replacing.check(lambda x: module(x, x, x, need_weights=False)[0], torch.rand(2, 7, WIDTH), replaced=3)
    assert [each.strided for each in replacing.report.replaced if each.workload.startswith("attention")] == [()]


def test_an_exported_program_reads_heads_where_they_lie(built: OnDemand, made: dict[str, Chain]) -> None:
    fast = exported(Joined(bias=False).eval(), built, WIDTH)
    assert [len(each.calls) for each in made.values()] == [3]
    assert not any(each.strided for each in fast.shapewright_report.replaced)
