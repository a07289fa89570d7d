"""Packed constants: which changes are noticed, and what finds those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import shapewright as sw
from shapewright.torch.packs import CHECK, Packs


@pytest.fixture
def packs() -> Packs:
    return Packs(lambda *tensors: sum(tensor.detach().sum() for tensor in tensors))


def _stepped(kind: type[optim.Optimizer], **options: Any) -> Callable[[nn.Parameter], None]:
    def step(weight: nn.Parameter) -> None:
        weight.grad = torch.ones_like(weight)
        kind([weight], lr=0.5, **options).step()

    return step


class _OfData(optim.Optimizer):  # type: ignore[misc]
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.sub_(weight.grad, alpha=group["lr"])


def _in(context: Callable[[], Any], change: Callable[[nn.Parameter], Any]) -> Callable[[nn.Parameter], None]:
    def changed(weight: nn.Parameter) -> None:
        with context():
            change(weight)

    return changed


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "AdamW fused": _stepped(optim.AdamW, fused=True),
    "Adam fused": _stepped(optim.Adam, fused=True),
    "SGD fused": _stepped(optim.SGD, fused=True),
    "Adagrad fused": _stepped(optim.Adagrad, fused=True),
    "AdamW foreach": _stepped(optim.AdamW, foreach=True),
    "an optimizer that writes through data": _stepped(_OfData),
    "_foreach_add_": _in(torch.no_grad, lambda weight: torch._foreach_add_([weight], 1.0)),
    "_foreach_copy_ of a detached": lambda weight: torch._foreach_copy_([weight.detach()], [weight.detach() + 1]),
    "detach": lambda weight: weight.detach().mul_(2.0),
    "inference mode": _in(torch.inference_mode, lambda weight: weight.mul_(2.0)),
    "out=": _in(torch.no_grad, lambda weight: torch.mul(weight, 2.0, out=weight)),
    "set_": _in(torch.no_grad, lambda weight: weight.set_(torch.randn(3, 4))),
    "swap_tensors": lambda weight: torch.utils.swap_tensors(weight, nn.Parameter(torch.randn(3, 4))),
    "data =": lambda weight: setattr(weight, "data", torch.randn(3, 4)),
    "vector_to_parameters": lambda weight: nn.utils.vector_to_parameters(torch.randn(12), [weight]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_pytorch_or_its_optimizers_make_is_noticed(packs: Packs, change: str) -> None:
    weight = nn.Parameter(torch.randn(3, 4))
    assert packs.of_one(weight) == packs.of_one(weight) == weight.sum()
    before = weight.detach().clone()
    CHANGES[change](weight)
    assert not torch.equal(before, weight)
    assert packs.of_one(weight) == packs.of(weight) == weight.sum()


def test_a_step_drops_nothing_but_what_was_made_of_its_parameters(packs: Packs) -> None:
    stepped, other = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    packs.of_one(other)
    packs.of(stepped, other)
    assert len(packs) == 2
    _stepped(optim.AdamW, fused=True)(stepped)
    assert len(packs) == 1
    assert packs.of(stepped, other) == stepped.sum() + other.sum()


UNSEEN: dict[str, Callable[[nn.Parameter], Any]] = {
    "data.copy_": lambda weight: weight.data.copy_(torch.randn(3, 4)),
    "NumPy": lambda weight: weight.detach().numpy().__imul__(2.0),
    "DLPack": lambda weight: torch.from_dlpack(weight.detach()).mul_(2.0),
}


@pytest.mark.parametrize("change", UNSEEN)
def test_a_change_behind_pytorchs_back_is_found_by_checksums_and_seen_after_forget(
    packs: Packs, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECK, "1")
    checked, weight = Packs(lambda tensor: tensor.detach().sum()), nn.Parameter(torch.randn(3, 4))
    for each in (packs, checked):
        assert each.of_one(weight) == each.of_one(weight) == weight.sum()
    UNSEEN[change](weight)
    assert packs.of_one(weight) != weight.sum()
    with pytest.warns(UserWarning, match=r"packed again.*sw\.torch\.forget"):
        assert checked.of_one(weight) == weight.sum()
    assert checked.of(weight) == weight.sum()
    sw.torch.forget()
    assert packs.of_one(weight) == weight.sum()
