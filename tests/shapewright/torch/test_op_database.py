"""PyTorch's database of operators through the backend: a sample of it, and, among the long tests, all of it."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tests.shapewright.torch.op_database import Laid, Outcomes, check, drawn, operators
from tests.shapewright.torch.replacing import Replacing

SAMPLE = ("addmm", "amax", "clamp", "mean", "nn.functional.gelu", "nn.functional.layer_norm", "softmax", "view_as")
"""A product, a norm, reductions, elementwise steps, a view."""
PARTS = 12
"""Tests that the whole of it is split into, for each dtype."""


@pytest.mark.soak
def test_a_sample_is_as_in_eager(replacing: Replacing) -> None:
    outcomes = Outcomes()
    for op in operators(torch.float32):
        if op.name in SAMPLE and not op.variant_test_name:
            for case in (Laid("as it is", is_told=True), Laid("strided", is_told=False)):
                check(op, torch.float32, replacing, outcomes, [case])
    assert not outcomes.wrong
    # The strided one has no such view, in eager neither.
    assert outcomes.counted["same"] >= 2 * len(SAMPLE) - 1
    assert outcomes.replaced >= {"addmm", "nn.functional.layer_norm", "softmax"}


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operator_is_as_in_eager(dtype: torch.dtype, part: int, replacing: Replacing) -> None:
    outcomes, random = Outcomes(), Random()
    for op in operators(dtype)[part::PARTS]:
        check(op, dtype, replacing, outcomes, drawn(random, 2))
    print(dict(outcomes.counted), sorted(outcomes.replaced))
    assert not outcomes.wrong, "\n".join(outcomes.wrong)
    assert outcomes.counted["same"]
