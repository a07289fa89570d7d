"""Mixtures of experts: rows by the matrix of their group, as PyTorch's operator has them, and operators like it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import shapewright as sw
from shapewright.torch.grouped import grouped_mm
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.replacing import Replacing, exported, same

EXPERTS, WIDTH, INNER = 5, 16, 24
OF_TRANSFORMERS = "transformers::grouped_mm_fallback"

if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
    # As transformers registers it, which is no requirement of the tests.
    @torch.library.custom_op(OF_TRANSFORMERS, mutates_args=())  # type: ignore[untyped-decorator]
    def grouped_mm_fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        rows = [weight.new_zeros(input.shape[0], weight.shape[2])]
        for first, end, matrix in zip([0, *offs[:-1].tolist()], offs.tolist(), weight, strict=True):
            rows[0][first:end] = input[first:end] @ matrix
        return rows[0]

    @grouped_mm_fallback.register_fake  # type: ignore[untyped-decorator]
    def _(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return input.new_empty(input.shape[0], weight.shape[2])


def by_group(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The operator that models call for the dtype: what is traced of PyTorch's own is of bfloat16 alone."""
    own = torch._grouped_mm if x.dtype is torch.bfloat16 else torch.ops.transformers.grouped_mm_fallback
    return own(x, w, offs=ends)


class Experts(nn.Module):  # type: ignore[misc]
    """Words go to the two experts that a router prefers; rows are sorted by expert. Weights are [groups, n, k]."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, has_bias: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, dtype=dtype)
        self.up = nn.Parameter(0.3 * torch.randn(EXPERTS, 2 * INNER, WIDTH, dtype=dtype), requires_grad=False)
        self.down = nn.Parameter(0.3 * torch.randn(EXPERTS, WIDTH, INNER, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, dtype=dtype)) if has_bias else None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = words.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.router(x).softmax(-1), 2)
        experts, order = torch.sort(chosen.flatten())
        ends = torch.histc(experts.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
        inner = by_group(x[order // 2], self.up.transpose(1, 2), ends)
        if self.bias is not None:
            inner = inner + self.bias[experts]
        gate, value = inner.chunk(2, -1)
        rows = by_group(functional.silu(gate) * value, self.down.transpose(1, 2), ends)
        rows = (rows * weights.flatten()[order, None])[order.argsort()]
        return rows.view(-1, 2, WIDTH).sum(1).view(words.shape)


def workloads(replacing: Replacing) -> list[str]:
    return [str(each.workload).partition("(")[0] for each in replacing.report.replaced]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_mixture_of_experts_has_calls_for_its_products(has_bias: bool, rest: str, replacing: Replacing) -> None:
    torch.manual_seed(0)
    model = Experts(has_bias=has_bias).eval()
    replacing.check(model, torch.randn(7, WIDTH), rest=rest)
    assert workloads(replacing).count("grouped_matmul") == 2
    assert replacing.report.share == 1


def test_experts_of_an_exported_program(built: OnDemand) -> None:
    model = Experts().eval()
    program = torch.export.export(
        model, (torch.rand(3, WIDTH),), dynamic_shapes=({0: torch.export.Dim("words", min=2, max=64)},)
    )
    assert sum("grouped_matmul" in str(task.workload) for task in sw.extract(program)) == 2
    exported(model, built, WIDTH)


def test_experts_of_short_floats(replacing: Replacing) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(9, WIDTH), nn.Parameter(torch.randn(3, WIDTH, 8), requires_grad=False)
    ends = torch.tensor([2, 2, 9], dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float16):
        model = Product(w.to(dtype))
        replacing.check(model, x.to(dtype), ends)
        assert workloads(replacing) == ["grouped_matmul"]


class Product(nn.Module):  # type: ignore[misc]
    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w, requires_grad=False)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return by_group(x, self.w, ends)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 6), min_size=3, max_size=3), behind=st.integers(0, 3))
def test_groups_of_any_size_and_rows_of_none(sizes: list[int], behind: int, replacing: Replacing) -> None:
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32)
    x = torch.randn(max(2, sum(sizes) + behind), WIDTH)
    replacing.check(Product(torch.randn(3, WIDTH, 8)), x, ends)
    assert workloads(replacing) == ["grouped_matmul"]


def test_without_a_library_rows_are_multiplied_as_pytorch_does() -> None:
    x, w, ends = torch.randn(9, 4), torch.randn(3, 4, 8), torch.tensor([2, 2, 7], dtype=torch.int32)
    group = torch.tensor([0, 0, 2, 2, 2, 2, 2, 3, 3], dtype=torch.int32)
    found = grouped_mm(x, w, ends, group)
    same(found[:7], torch._grouped_mm(x[:7], w, offs=ends))
    assert not found[7:].any()
    torch.library.opcheck(grouped_mm.default, (x, w, ends, group))


def test_products_that_are_no_rows_by_group_are_left(replacing: Replacing) -> None:
    """Sums over the rows of each group, results whose rows PyTorch pads, and weights that are new at every call."""
    ends = torch.tensor([2, 7], dtype=torch.int32)
    x, y = torch.randn(7, 8, dtype=torch.bfloat16), torch.randn(7, 16, dtype=torch.bfloat16)
    replacing.check(lambda x, y: torch._grouped_mm(x.t(), y, offs=ends), x, y, replaced=0)
    replacing.check(Product(torch.randn(2, 8, 6)), x.float(), ends, replaced=0)
    replacing.check(by_group, x.float(), torch.randn(2, 8, 4), ends, replaced=0)
    assert not replacing.report.replaced
