"""Transposes within chains: which are steps, and that they are those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shapewright.torch.chain import Chain
from shapewright.torch.plan import DTYPES, Plan, Taken
from shapewright.torch.steps import ChainPlan, Step
from shapewright.torch.transposes import TRANSPOSE, Transpose
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import chosen

pytestmark = pytest.mark.usefixtures("made")
CHANNELS, SIDE = 8, 6


class Block(nn.Module):  # type: ignore[misc]
    """Channels behind one another between convolutions, as in ConvNeXt."""

    def __init__(self, *, is_returned: bool = False) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
        self.norm, self.up, self.down = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 16), nn.Linear(16, CHANNELS)
        self.is_returned = is_returned

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        rows = x.permute(0, 2, 3, 1)
        mixed = self.down(nn.functional.gelu(self.up(self.norm(rows)))).permute(0, 3, 1, 2)
        y = self.last(x + mixed)
        return (y, rows, mixed) if self.is_returned else y


def transposes(made: dict[str, Chain]) -> list[list[str]]:
    """Of each chain which of its calls are transposes."""
    return [["transpose" if isinstance(each, Transpose) else "call" for each in chain.calls] for chain in made.values()]


def pictures(batch: int) -> torch.Tensor:
    return torch.rand(batch, CHANNELS, SIDE, SIDE)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_values_that_calls_read_are_transposed_within_a_chain(
    rest: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    model = Block().eval()
    fast = replacing.compiled(model, rest=rest)
    with torch.no_grad():
        for batch in (3, 2):
            x = pictures(batch)
            same(fast(x), model(x))
    (chain,) = transposes(made)
    assert chain.count("transpose") == 2
    assert len(chain) == 8


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_values_that_the_caller_gets_lie_as_those_of_eager(
    rest: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    model = Block(is_returned=True).eval()
    with torch.no_grad():
        x = pictures(3)
        same(replacing.compiled(model, rest=rest)(x), model(x))
    assert not any("transpose" in each for each in transposes(made))


# -- the copy itself --------------------------------------------------------------------------------------------------
def transposed(x: torch.Tensor, threads: int = 1) -> torch.Tensor:
    """Matrices [matrices, rows, columns] transposed by a chain."""
    dtype = next(name for name, each in DTYPES.items() if each is x.dtype)
    plan = Plan(TRANSPOSE, (Taken((0,), ((0,), (1,), (2,))),), ((0,), (1,), (2,)), dtype)
    chain = Chain(ChainPlan((Step(plan.text(), (0,), (-1, -2, -3)),), (0,)))
    chain._threads = threads
    matrices, rows, columns = x.shape
    (found,) = chain([x], [matrices, columns, rows])
    return found


SIZES = st.integers(0, 40)


@given(SIZES, SIZES, st.integers(0, 3), st.sampled_from([*DTYPES.values()]))
def test_transposes_are_those_of_pytorch(rows: int, columns: int, matrices: int, dtype: torch.dtype) -> None:
    x = torch.randint(0, 99, (matrices, rows, columns)).to(dtype)
    assert torch.equal(transposed(x), x.mT)


@pytest.mark.parametrize("shape", chosen([(3, 211, 317)], [(3, 211, 317), (1, 1000, 100), (7, 3, 20_000)]))
def test_threads_share_what_is_large(shape: tuple[int, ...]) -> None:
    x, before = torch.rand(shape), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(8):
            assert torch.equal(transposed(x, threads=2), x.mT)
    finally:
        torch.set_num_threads(before)
