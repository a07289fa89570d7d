"""Values that a graph computes several times: which are computed once, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from shapewright.torch.repeats import merge_repeats

Function = Callable[[torch.Tensor], Any]


@torch.library.custom_op("shapewright_tests::counted", mutates_args=())  # type: ignore[untyped-decorator]
def counted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


counted.register_fake(torch.empty_like)


ONE: dict[str, Function] = {
    "twice": lambda x: (x + 1).exp() * (x + 1).exp(),
    "sizes": lambda x: torch.ones(x.shape[0] + 1).exp() * torch.ones(x.shape[0] + 1).exp(),
    "parts": lambda x: x.split(2)[0].exp() + x.split(2)[0].exp(),
}
TWO: dict[str, Function] = {
    "random numbers": lambda x: torch.bernoulli(x).exp() * torch.bernoulli(x).exp(),
    "somebody else's": lambda x: counted(x).exp() * counted(x).exp(),
    "numbers of two types": lambda x: (x * 1).exp() * (x * 1.0).exp(),
    "two results": lambda x: (x.exp(), x.exp()),
    "two results that are views": lambda x: (x.exp().view(-1), x.exp()[None]),
}


@pytest.mark.parametrize("case", [*ONE, *TWO])
def test_equal_values_are_computed_once_where_nobody_can_tell(case: str) -> None:
    function = (ONE | TWO)[case]
    graph = make_fx(function, tracing_mode="symbolic")(torch.rand(4))
    merge_repeats(graph.graph)
    graph.graph.lint()
    graph.recompile()
    exps = [node for node in graph.graph.nodes if node.target is torch.ops.aten.exp.default]
    assert len(exps) == (1 if case in ONE else 2)
    x = torch.tensor([0.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(graph(x), function(x))
