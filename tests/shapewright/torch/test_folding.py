"""What frozen programs compute of constants alone: computed once, and anew after ``forget``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import shapewright as sw
from shapewright.torch import frozen
from shapewright.torch.chain_op import chains_so_far
from shapewright.torch.packs import CHECK
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import WIDTH, close
from tests.shapewright.torch.replacing import Seen

aten = torch.ops.aten
HEADS, WORDS = 4, 6
RESTS = ("eager", "inductor")


class Biased(nn.Module):  # type: ignore[misc]
    """Attention whose scores have a bias of each pair of positions: of a table, as Swin has it, and of two layers, as
    its second version has it. ``read`` is what else the model computes of it."""

    def __init__(self, read: str = "") -> None:
        super().__init__()
        places = torch.arange(WORDS)
        self.register_buffer("index", places[:, None] - places[None] + WORDS - 1)
        self.register_buffer("offsets", torch.linspace(-1, 1, 2 * WORDS - 1)[:, None])
        self.table = nn.Parameter(torch.randn(2 * WORDS - 1, HEADS))
        self.of_offsets = nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, HEADS))
        self.joined, self.out, self.read = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), read

    def bias(self) -> torch.Tensor:
        looked_up = self.table[self.index.view(-1)].view(WORDS, WORDS, HEADS)
        return (looked_up + torch.sigmoid(self.of_offsets(self.offsets))[self.index]).permute(2, 0, 1)[None]

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (each.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for each in self.joined(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) * 0.25 + self.bias()).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        if self.read == "by loops":
            return y * torch.cumsum(self.table, 0).mean(), x.cumsum(0) + torch.flip(self.table, (0,)).mean()
        return (y, self.bias()) if self.read == "by the caller" else y


def compiled(model: nn.Module, built: OnDemand, rest: str) -> Any:
    program = export(model, (torch.rand(2, WORDS, WIDTH),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    folders = [str(built.folder(task.workload)) for task in sw.extract(program)]
    return sw.torch.compile_exported(program, folders, freeze=True, options={"rest": rest})


@pytest.fixture(params=RESTS)
def rest(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("read", ["", "by loops", "by the caller"])
def test_what_is_computed_of_constants_is_computed_anew_after_forget(read: str, rest: str, built: OnDemand) -> None:
    model = Biased(read).eval()
    with torch.no_grad():
        fast = compiled(model, built, rest)
        for batch in (1, 3):
            x = torch.rand(batch, WORDS, WIDTH)
            assert all(map(close, _listed(fast(x)), _listed(model(x))))
        model.table.add_(1.5 * torch.randn_like(model.table))
        model.of_offsets[0].weight.mul_(-2)
        sw.torch.forget()
        assert all(map(close, _listed(fast(x)), _listed(model(x))))
        model.table.neg_()
        sw.torch.forget([model.table])
        assert all(map(close, _listed(fast(x)), _listed(model(x))))


def test_a_program_that_is_compiled_in_inference_mode_computes_them_anew_outside(rest: str, built: OnDemand) -> None:
    model, x = Biased().eval(), torch.rand(2, WORDS, WIDTH)
    with torch.inference_mode():
        fast = compiled(model, built, rest)
    with torch.no_grad():
        model.table.neg_()
        sw.torch.forget()
        assert close(fast(x), model(x))


def test_changes_that_pytorch_does_not_count_are_seen_where_checksums_are_compared(
    built: OnDemand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECK, "1")
    model, x = Biased().eval(), torch.rand(2, WORDS, WIDTH)
    with torch.no_grad():
        fast = compiled(model, built, "eager")
        assert close(fast(x), model(x))
        model.table.data.neg_()
        assert close(fast(x), model(x))


def test_nothing_but_a_chain_runs_at_a_call(built: OnDemand) -> None:
    model, x = Biased().eval(), torch.rand(2, WORDS, WIDTH)
    fast = compiled(model, built, "eager")
    fast(x)
    with torch.no_grad(), Seen() as seen:
        fast(x)
    assert not {aten.index.Tensor, aten.sigmoid.default, aten.relu.default, torch.ops.shapewright.call.default} & {
        *seen.functions
    }
    assert torch.ops.shapewright.chain.default in seen.functions


def test_models_of_one_architecture_have_values_of_their_own(rest: str, built: OnDemand) -> None:
    models, x = [Biased("by loops").eval() for _ in range(2)], torch.rand(2, WORDS, WIDTH)
    with torch.no_grad():
        both = [compiled(model, built, rest) for model in models]
        for fast, model in zip(both, models, strict=True):
            assert all(map(close, fast(x), model(x)))


def test_what_the_caller_is_given_is_its_own(rest: str, built: OnDemand) -> None:
    model, x = Biased("by the caller").eval(), torch.rand(2, WORDS, WIDTH)
    with torch.no_grad():
        fast = compiled(model, built, rest)
        _, bias = fast(x)
        bias.zero_()
        assert all(map(close, fast(x), model(x)))


def test_values_go_with_their_program(built: OnDemand) -> None:
    model = Biased().eval()
    fast, before = compiled(model, built, "eager"), len(chains_so_far())
    assert len(frozen._folded) >= 1
    kept = len(frozen._folded)
    fast(torch.rand(1, WORDS, WIDTH))
    del fast
    assert len(frozen._folded) == kept - 1
    assert len(chains_so_far()) <= before


def _listed(values: Any) -> tuple[torch.Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)
