"""Attention with masks of floats and of bools through the backend, rows that are hidden whole among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import shapewright as sw
from shapewright.torch import Report
from tests.shapewright.libraries import save
from tests.shapewright.torch.replacing import Replacing
from tests.shares import chosen, diagonal
from tuner.program.job.task import SearchTask
from tuner.program.target import native


class Padded(nn.Module):  # type: ignore[misc]
    """Sequences of these lengths, padded to the longest."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(x.shape[2]) < lengths)[:, None, None, :]
        if self.kind == "floats":
            mask = torch.where(mask, 0.0, -torch.inf)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("kind", chosen(["floats"], ["bools", "floats"]))
def test_rows_that_a_mask_hides_whole_are_zero_as_in_eager(kind: str, tmp_path: Path) -> None:
    lengths, dims = torch.tensor([[9], [4], [0]]), ({2: torch.export.Dim("length", min=2, max=64)}, None)
    (task,) = sw.extract(Padded(kind).eval(), (torch.randn(3, 2, 9, 16), lengths), dims)
    save(tmp_path / "masked", SearchTask(task.workload, None, task.shape_vars, target=native()))
    report = Report()
    options = {"source": tmp_path, "report": report, "rest": "eager"}
    compiled = torch.compile(Padded(kind).eval(), backend="shapewright", options=options)
    for size in (7, 33):
        x = torch.randn(3, 2, size, 16)
        torch._dynamo.mark_dynamic(x, 2)
        with torch.no_grad():
            found, right = compiled(x, lengths), Padded(kind)(x, lengths)
        assert (right[2] == 0).all()
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    assert len(report.replaced) == 1, report


OF_POSITIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda places: places >= 0,
    "all, by a sum": lambda places: places + 2 >= 2,
    "all and all": lambda places: (places >= 0) & torch.ones_like(places, dtype=torch.bool),
    "all and a number": lambda places: (places >= 0) & torch.scalar_tensor(0, dtype=torch.bool),
    "all but the first": lambda places: places >= 1,
    "all but the last": lambda places: places - 1 >= 0,
    "none, by a sum": lambda places: places - 9 >= 0,
    "those of a weight": lambda places: (places >= 0) & (torch.linspace(-1, 1, 5)[None] > 0),
}


@pytest.mark.parametrize(("name", "is_spelled_out"), diagonal(OF_POSITIONS, [False, True], every=8))
def test_only_a_mask_that_hides_nothing_is_left_out(name: str, is_spelled_out: bool, replacing: Replacing) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        seen = OF_POSITIONS[name](torch.arange(5)[:, None]).expand(5, 5)
        if not is_spelled_out:
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)
        scores = x @ x.transpose(-2, -1) * 0.25 + torch.where(seen, 0.0, -torch.inf)
        return torch.softmax(scores, -1) @ x

    replacing.check(function, torch.randn(3, 2, 5, 16))


def _spelled_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.25 + mask, -1) @ v


def test_where_there_is_no_key_rows_are_zero_as_in_eager(replacing: Replacing) -> None:
    compiled, q = replacing.compiled(_spelled_out, dynamic=None), torch.randn(2, 3, 5, 16)
    for count in (7, 1, 0):
        k, v, mask = torch.randn(2, 3, count, 16), torch.randn(2, 3, count, 16), torch.randn(5, count)
        for each, axis in ((k, 2), (v, 2), (mask, 1)):
            # Other sizes than these have graphs of their own where they are 0.
            torch._dynamo.decorators.mark_unbacked(each, axis, shape_id="keys")
        with torch.no_grad():
            found, right = compiled(q, k, v, mask), _spelled_out(q, k, v, mask)
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert {each.workload.partition("(")[0] for each in replacing.report.replaced} == {"attention"}
