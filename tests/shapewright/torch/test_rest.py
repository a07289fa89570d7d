"""What is left to Inductor: its loops are one thread's where they are little beside the calls of libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config

from tests.shapewright.torch.models import close
from tests.shapewright.torch.replacing import Replacing

WIDTH = 32


class Beside(nn.Module):  # type: ignore[misc]
    """Two products, and what else is computed."""

    def __init__(self, other: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.other(x)))


def _little(x: torch.Tensor) -> torch.Tensor:
    return x + torch.cumsum(x[:, :1], 0)


def _much(x: torch.Tensor) -> torch.Tensor:
    for number in range(8):
        x = torch.cumsum(torch.sin(x + number), 0)
    return x


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each graph that Inductor compiles: for how many threads, and whether its code looks at sizes."""
    found: list[tuple[int, bool]] = []
    compiled = compile_fx.compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        found.append((inductor_config.cpp.threads, inductor_config.size_asserts))
        return compiled(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", inner)
    return found


@pytest.mark.parametrize(("other", "threads"), [(_little, 1), (_much, -1)])
def test_little_is_for_one_thread(
    other: Callable[[torch.Tensor], torch.Tensor], threads: int, replacing: Replacing, seen: list[tuple[int, bool]]
) -> None:
    model, x = Beside(other).eval(), torch.rand(6, WIDTH)
    with torch.no_grad():
        assert close(replacing.compiled(model, rest="inductor")(x), model(x))
    assert seen == [(threads, False)]
    assert inductor_config.cpp.threads == -1


def test_what_somebody_has_set_stays(replacing: Replacing, seen: list[tuple[int, bool]]) -> None:
    model, x = Beside(_little).eval(), torch.rand(6, WIDTH)
    with torch.no_grad(), inductor_config.patch({"cpp.threads": 2}):
        assert close(replacing.compiled(model, rest="inductor")(x), model(x))
    torch._dynamo.reset()
    chosen = {"inductor": {"cpp.threads": 2, "size_asserts": True}}
    fast = torch.compile(model, backend="shapewright", dynamic=True, options=chosen)
    with torch.no_grad():
        assert close(fast(x), model(x))
    assert seen == [(2, False), (2, True)]
