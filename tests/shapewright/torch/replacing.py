"""Functions compiled with libraries that replace what they can, compared with PyTorch alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import shapewright as sw
from shapewright.torch.backend import shapewright
from tests.shapewright.libraries import OnDemand

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Seen(TorchDispatchMode):  # type: ignore[misc]
    """The operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


class Replacing:
    """Compiles with the backend. ``report`` is that of the last graph."""

    def __init__(self) -> None:
        self.report = sw.torch.Report()

    def compiled(self, function: Callable[..., Any], *, rest: str = "eager", dynamic: bool | None = True) -> Any:
        torch._dynamo.reset()
        self.report = sw.torch.Report()
        options = {"rest": rest, "report": self.report}
        return torch.compile(function, backend=shapewright, dynamic=dynamic, options=options)

    def check(self, function: Callable[..., Any], *inputs: Any, rest: str = "eager", replaced: int = 1) -> None:
        """Values, dtypes, strides and what is written to are those of eager; so many parts were replaced at least."""
        mine, own = copy.deepcopy(inputs), copy.deepcopy(inputs)
        for each in mine:
            if isinstance(each, torch.Tensor) and each.dim() and each.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(each, 0)
        with torch.no_grad():
            found, right = self.compiled(function, rest=rest, dynamic=None)(*mine), function(*own)
        same(found, right)
        same(mine, own)
        assert len(self.report.replaced) >= replaced, str(self.report)


def exported(model: nn.Module, built: OnDemand, width: int) -> Any:
    """A model of [batch, length, width] as an exported program whose parts all have libraries; it is what eager is."""
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=1, max=32)}
    program = torch.export.export(model, (torch.rand(2, 5, width),), dynamic_shapes=(dims,))
    folders = [str(built.folder(task.workload)) for task in sw.extract(program)]
    fast = sw.torch.compile_exported(program, folders, strict=True)
    with torch.no_grad():
        for batch, length in ((1, 1), (2, 7), (3, 32)):
            x = torch.rand(batch, length, width)
            same(fast(x), model(x))
    return fast


def same(found: Any, right: Any) -> None:
    """Assert that two structures hold the same tensors."""
    mine, tree = _pytree.tree_flatten(found)
    own, wanted = _pytree.tree_flatten(right)
    assert tree == wanted
    for one, other in zip(mine, own, strict=True):
        if isinstance(other, torch.Tensor):
            _same(one, other)
        else:
            assert one == other


def _same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.dtype is other.dtype
    assert one.shape == other.shape
    assert _strides(one) == _strides(other)
    tolerance = TOLERANCE.get(other.dtype, 0.0)
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _strides(tensor: torch.Tensor) -> Sequence[int]:
    """Those of axes that have more than one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1] if tensor.numel() else []
