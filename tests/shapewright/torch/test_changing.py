"""Numbers that are others at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import every

WEIGHT, BIAS = torch.linspace(-1, 1, 24 * 16).view(24, 16), torch.linspace(-0.5, 0.5, 24)
FLOATS, INTS = (0.5, 1.5, -2.5, 1e-3), (3, 4, -5, 6)


def dense(x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, WEIGHT, BIAS)


CASES: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], tuple[float, ...], str]] = {
    "scaled": (lambda x, number: dense(x) * number, FLOATS, "mul"),
    "shifted": (lambda x, number: torch.relu(dense(x) + number), FLOATS, "add + relu"),
    "scaled by an int": (lambda x, number: dense(x) * number, INTS, "mul"),
    "shifted by an int": (lambda x, number: dense(x) - number, INTS, "sub"),
    "over an int": (lambda x, number: dense(x) / (number + 1), INTS, "div"),
    "of bfloat16 by an int": (lambda x, number: dense(x).bfloat16() * number, INTS, ""),
    "of a temperature": (lambda x, number: torch.softmax(dense(x) / number, -1), FLOATS, "div"),
    "leaky": (lambda x, number: functional.leaky_relu(dense(x), number), FLOATS, ""),
    "at least": (lambda x, number: dense(x).clamp(min=number), FLOATS, ""),
    "at most": (lambda x, number: dense(x).clamp(max=number), FLOATS, ""),
    "between": (lambda x, number: dense(x).clamp(-0.1, number), FLOATS, ""),
    "plus so much of": (lambda x, number: torch.add(dense(x), x[:, :1], alpha=number), FLOATS, "add"),
    "less so much of": (lambda x, number: torch.sub(dense(x), x[:, :1], alpha=number), FLOATS, ""),
    "from a number": (lambda x, number: number - dense(x), FLOATS, "neg"),
    "from an int": (lambda x, number: number - dense(x), INTS, ""),
    "of positions": (lambda x, number: dense(x) * (torch.arange(x.shape[0])[:, None] + number), INTS, ""),
}


@pytest.mark.parametrize("name", every(7, CASES))
def test_a_number_that_changes_is_an_operand(name: str, replacing: Replacing) -> None:
    function, numbers, fused = CASES[name]
    fast, x, graphs = replacing.compiled(function), torch.randn(5, 16), []
    for number in numbers:
        with torch.no_grad():
            same(fast(x, number), function(x, number))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[0], "nothing is compiled anew"
    assert any(fused in each.workload for each in replacing.report.replaced), str(replacing.report)


HALF, WHOLE = torch.full((24,), 100.0, dtype=torch.float16), torch.arange(24)
PROMOTED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "half and whole": lambda x, number: torch.add(dense(x).half(), WHOLE, alpha=number),
    "bfloat16 and whole": lambda x, number: torch.sub(dense(x).bfloat16(), WHOLE, alpha=number),
    "float and half": lambda x, number: torch.add(dense(x), HALF, alpha=1000 * number),
    "float and bfloat16": lambda x, number: torch.add(dense(x), HALF.bfloat16(), alpha=number),
    "double and whole": lambda x, number: torch.add(dense(x).double(), WHOLE, alpha=number),
    "bytes from a number": lambda x, number: dense(x) + (number - WHOLE.byte()),
    "halves": lambda x, number: torch.add(dense(x).half(), HALF, alpha=number),
    "whole and float": lambda x, number: torch.add(WHOLE, dense(x), alpha=number),
    "half from a number": lambda x, number: number - dense(x).half(),
    "whole by a number": lambda x, number: dense(x) + WHOLE * number,
}


@pytest.mark.parametrize("name", every(5, PROMOTED))
def test_dtypes_are_promoted_as_in_eager(name: str, replacing: Replacing) -> None:
    fast, x = replacing.compiled(PROMOTED[name]), torch.randn(5, 16)
    for number in (1.7, -2.3, 0.5):
        with torch.no_grad():
            same(fast(x, number), PROMOTED[name](x, number))


def test_an_operator_with_a_number_of_the_model_is_not_spelled_out(replacing: Replacing) -> None:
    replacing.check(lambda x: functional.leaky_relu(dense(x), 0.2).clamp(max=6.0), torch.randn(5, 16))
    (replaced,) = replacing.report.replaced
    assert "leaky_relu" in replaced.workload
