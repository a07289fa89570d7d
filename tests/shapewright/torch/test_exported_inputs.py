"""What programs of torch.export are called with: constants that are theirs, and inputs that they write to."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shapewright as sw
from tests.shapewright.torch.replacing import same
from tuner.errors import InvalidInput


class Kind(Enum):
    ONE, TWO = 1, 2


class Scaled(nn.Module):  # type: ignore[misc]
    """A constant that the program is exported with."""

    def forward(self, x: torch.Tensor, kind: Any) -> torch.Tensor:
        return x * 2 if kind is Kind.ONE else x / kind if isinstance(kind, float) else x * 3


class Counted(nn.Module):  # type: ignore[misc]
    """Writes to its first input, where nothing records gradients perhaps."""

    def __init__(self, *, is_inside: bool = False) -> None:
        super().__init__()
        self.is_inside = is_inside

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not self.is_inside):
            x.add_(1)
        return x + y


def compiled(model: nn.Module, *inputs: Any, libraries: Path) -> Any:
    program = torch.export.export(model, inputs)
    return sw.torch.compile_exported(program, libraries, options={"rest": "eager"})


@pytest.mark.parametrize(
    ("given", "other"), [(Kind.ONE, Kind.TWO), (0.0, -0.0), (float("nan"), 1.0)], ids=["enum", "zero", "nan"]
)
def test_constants_are_those_of_the_export(given: Any, other: Any, encoder_libraries: Path) -> None:
    x = torch.rand(4)
    fast = compiled(Scaled(), x, given, libraries=encoder_libraries)
    for _ in range(2):
        same(fast(x, given), Scaled()(x, given))
        with pytest.raises(InvalidInput, match="kind"):
            fast(x, other)


def test_what_is_written_to_shares_memory_with_no_other_input(encoder_libraries: Path) -> None:
    fast = compiled(Counted(), torch.rand(4, 3), torch.rand(4, 3), libraries=encoder_libraries)
    rows, own = torch.rand(9, 3), Counted()
    for x, y in ((rows[:4], rows[:4]), (rows[:4], rows[3:7])):
        with pytest.raises(InvalidInput, match="x: shares memory with y"):
            fast(x, y)
    again = rows.clone()
    same(fast(rows[:4], rows[4:8]), own(again[:4], again[4:8]))
    same(rows, again)


def test_what_is_written_to_without_gradients_has_no_gaps(encoder_libraries: Path) -> None:
    fast = compiled(Counted(is_inside=True), torch.rand(4, 4), torch.rand(4, 4), libraries=encoder_libraries)
    with pytest.raises(InvalidInput, match="x: has gaps, and the program writes to it"):
        fast(torch.rand(4, 4).T, torch.rand(4, 4))
