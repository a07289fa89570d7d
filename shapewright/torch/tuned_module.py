"""What a module has whose forward calls tuned libraries: their plans, and when PyTorch's own must run instead.

A tuned forward is for plain tensors and inference: where a derivative is wanted, or PyTorch traces, transforms or casts
what it computes, the original one runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from shapewright.models.lifted import View
from shapewright.sources.reports import Report
from shapewright.torch.devices import CPU
from shapewright.torch.op import call
from shapewright.torch.packs import forget
from shapewright.torch.plan import DTYPES, Plan, Taken
from tuner.program.language.workload import Tensor, Workload

MAX_RANK = 6
"""The largest rank of an input whose leading axes are joined into rows."""
GRADIENTS = (
    "a gradient is wanted, and tuned kernels are for inference: PyTorch's own ran (torch.no_grad() has ours run)"
)
TRANSFORMED = "a transform of torch.func is active, and tuned kernels have no derivative: PyTorch's own ran"
TANGENTS = "forward-mode differentiation is active, and tuned kernels have no derivative: PyTorch's own ran"
AUTOCAST = "autocast is active, which chooses dtypes by PyTorch's operators: PyTorch's own ran"
TRACED = "torch.jit traces the model, and traces have PyTorch's own operators"
OVERRIDDEN = "a mode of torch.overrides is active, which PyTorch's own operators have to see: they ran"
LAYOUT = "a tensor lies in memory in an order that PyTorch's own keeps, and tuned kernels do not: PyTorch's own ran"
CHANGED = "a setting of a module, such as its eps, is another one than when it was optimized: PyTorch's own ran"
SUBCLASS = "a tensor is nested, sparse, elsewhere, or of a class of its own: PyTorch's own ran"


class Bound:
    """A library in a module: the plans of its call, by the rank of the module's input."""

    def __init__(self, digest: str, workload: Workload, plans: dict[int, Plan]) -> None:
        self.digest = digest
        self.inputs = len(workload.inputs)
        self.dtype = DTYPES[workload.operands[-1].dtype]
        self.plans = {rank: plan.text() for rank, plan in plans.items()}


def rows(rank: int) -> View:
    """``[..., n]`` as ``[m, n]``."""
    return tuple(range(rank - 1)), (rank - 1,)


def bound_rows(digest: str, workload: Workload) -> Bound:
    """A library of rows: its first input is the module's, its others are parameters as they are."""
    _, *others = _whole(workload)
    dtype = workload.outputs[0].dtype
    plans = {
        rank: Plan(digest, (Taken((0,), rows(rank)), *others), rows(rank), dtype) for rank in range(2, MAX_RANK + 1)
    }
    return Bound(digest, workload, plans)


def bound_whole(digest: str, workload: Workload) -> Bound:
    """A library that takes every tensor as it is."""
    (output,) = workload.outputs
    plan = Plan(digest, tuple(_whole(workload)), _axes(output), output.dtype)
    return Bound(digest, workload, {len(workload.inputs[0].dims): plan})


def _whole(workload: Workload) -> list[Taken]:
    """The workload's inputs in order, each as it is."""
    return [
        Taken((position,), _axes(tensor), packed=tensor.constant) for position, tensor in enumerate(workload.inputs)
    ]


def _axes(tensor: Tensor) -> View:
    return tuple((axis,) for axis in range(len(tensor.dims)))


class Tuned:
    """What tuned modules share. ``bound``: by what it is for, the library; ``tuned_for``: the kind of device that
    libraries compute on; ``report``: that of the whole model; ``fixed``: its ``SETTINGS``, as libraries have them."""

    SETTINGS: tuple[str, ...] = ()
    bound: dict[str, Bound]
    fixed: tuple[Any, ...] = ()
    tuned_for: str = CPU
    shapewright_report: Report
    training: bool
    parameters: Callable[[], Any]

    def called(
        self, plan: str, operands: Sequence[torch.Tensor], sizes: Sequence[int], own: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """What the library of ``plan`` gives, or ``own``, PyTorch's, where it fails."""
        try:
            return call(list(operands), list(sizes), plan)
        except Exception as error:
            # PyTorch has the last word on its arguments: for those that are wrong it raises here.
            result = own()
            self.say(f"a tuned call failed, and PyTorch's own ran: {error}")
            return result

    def plan(self, part: str, *tensors: torch.Tensor | None) -> str | None:
        """The plan of a part for these tensors, the activation first; None where PyTorch's own must run."""
        bound = self.bound.get(part)
        if bound is None or any(tensor is not None and tensor.dtype is not bound.dtype for tensor in tensors):
            return None
        if self.settings() != self.fixed:
            self.say(CHANGED)
            return None
        if bound.inputs > sum(tensor is not None for tensor in tensors) or self.must_be_pytorchs(*tensors):
            return None
        return bound.plans.get(tensors[0].dim())  # type: ignore[union-attr]

    def settings(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.SETTINGS])

    def must_be_pytorchs(self, *tensors: torch.Tensor | None) -> bool:
        """Whether only PyTorch's own gives the right result for these tensors here. Says why."""
        device = self.tuned_for
        reason = _obstacle(device) or next((why for each in tensors if (why := _unfit(each, device))), "")
        if not reason and wants_gradient(*tensors):
            reason = GRADIENTS
        if reason:
            self.say(reason)
        return bool(reason)

    def are_channels_last(self, *tensors: torch.Tensor) -> bool:
        """Whether images lie pixel by pixel, as PyTorch's results then do, and ours do not. Says so."""
        for tensor in tensors:
            _, channels, *image = tensor.stride()
            if channels == 1 and any(stride != 1 for stride in image):
                self.say(LAYOUT)
                return True
        return False

    def say(self, text: str) -> None:
        """Warn of ``text``, once for a model. Nothing while its code is compiled: that is not what runs."""
        if torch.compiler.is_compiling() or text in self.shapewright_report.notes:
            return
        self.shapewright_report.note([text])
        warnings.warn(f"shapewright: {text}", stacklevel=5)

    def train(self, mode: bool = True) -> Any:
        """``nn.Module.train``. Training loops write to weights in many ways: what was packed of them is dropped."""
        if mode != self.training:
            forget(list(self.parameters()))
        return super().train(mode)  # type: ignore[misc]

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script takes in its place: the module as it was."""
        kind = original(type(self))
        module: nn.Module = object.__new__(kind)
        module.__dict__.update(vars(self))
        return restored(module)


def original(kind: type) -> type[nn.Module]:
    """What a tuned class is a form of; any other as it is."""
    return next(each for each in kind.__mro__ if issubclass(each, nn.Module) and not issubclass(each, Tuned))


def restored(module: nn.Module) -> nn.Module:
    """The module again as it was before ``optimize``, in place. One that was parametrized since then stays."""
    if "parametrizations" not in module._modules:
        if isinstance(module, Tuned):
            module.__class__ = original(type(module))
        for name in ADDED:
            module.__dict__.pop(name, None)
    return module


ADDED = ("__module__", "__prepare_scriptable__", "bound", "fixed", "shapewright_report", "tuned_for")
"""What ``optimize`` puts in a module."""


def _obstacle(device: str) -> str:
    """What is active that only PyTorch's own operators take part in; empty if nothing is."""
    if torch._C._are_functorch_transforms_active():
        return TRANSFORMED
    if forward_ad._current_level >= 0:
        return TANGENTS
    if torch.compiler.is_compiling():
        return AUTOCAST if torch.is_autocast_enabled(device) else ""
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device):
        return AUTOCAST
    if torch._C._get_tracing_state() is not None:
        return TRACED
    if torch._C._len_torch_function_stack() and not all(
        isinstance(mode, DeviceContext) for mode in torch.overrides._get_current_function_mode_stack()
    ):
        return OVERRIDDEN
    return ""


def _unfit(tensor: torch.Tensor | None, device: str) -> str:
    """Why a tensor is none that a library for a device reads; empty if it is one. A compiler's stand for such that
    are."""
    if tensor is None or torch.compiler.is_compiling() or isinstance(tensor, FakeTensor):
        return ""
    is_plain = type(tensor) is torch.Tensor or type(tensor) is nn.Parameter
    is_there = tensor.is_cpu if device == CPU else tensor.is_cuda
    return "" if is_plain and is_there and tensor.layout is torch.strided and not tensor.is_nested else SUBCLASS


def wants_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd would record a call. A program that is exported is for inference."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
