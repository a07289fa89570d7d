"""The operator ``torch.ops.shapewright.call``: a tuned library in a graph of PyTorch.

    call(Tensor[] operands, SymInt[] sizes, str plan) -> Tensor

``operands`` are tensors of the model, weights as they are; ``sizes`` those of the output; ``plan`` says which library
runs and how tensors are viewed (``shapewright.torch.plan``). It is registered through ``Library.impl``, for the CPU,
for GPUs and for fake tensors, whose symbolic sizes it keeps. ``torch.vmap`` runs it once for each sample.

It is for inference. Whoever asks it for a derivative, backward or forward, gets a RuntimeError: a zero would be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from shapewright.torch.plan import Call, output_of, plan_of

NAMESPACE = "shapewright"
NO_DERIVATIVE = (
    "torch.ops.shapewright.call has no derivative: tuned libraries are for inference. Call it under torch.no_grad() "
    "with tensors without tangents, or leave the part of the model that is differentiated to PyTorch"
)

_calls: dict[str, Call] = {}


def prepared(text: str) -> Call:
    """The call of a plan, its library loaded. Raises ShapewrightError."""
    call = _calls.get(text)
    if call is None:
        # Of two threads that come here at once both make one; either serves.
        call = _calls.setdefault(text, Call(plan_of(text)))
    return call


def calls_so_far() -> list[Call]:
    """The calls of all plans that were run or prepared in this process."""
    return list(_calls.values())


def run(operands: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> torch.Tensor:
    """What the operator does on the CPU and on GPUs."""
    return (_calls.get(plan) or prepared(plan))(operands, sizes)


def direct(*operands: Any, out: torch.Tensor) -> None:
    """What Inductor's code calls, past the dispatcher: the operands as ``Call.direct`` has them, then the plan."""
    plan = operands[-1]
    (_calls.get(plan) or prepared(plan)).direct(operands, out)


def _fake(operands: Sequence[torch.Tensor], sizes: Sequence[Any], plan: str) -> torch.Tensor:
    return output_of(plan_of(plan), sizes, operands[0])


# -- derivatives --------------------------------------------------------------------------------------------------
_any_requires_grad = torch._C._any_requires_grad
_is_grad_enabled = torch.is_grad_enabled
_Keys, _Key = torch._C.DispatchKeySet, torch._C.DispatchKey
_PLAIN = (_Keys(_Key.CPU) | _Keys(_Key.AutogradCPU)).raw_repr()
"""The keys of a call on the CPU that nobody traces, transforms or replays."""


def _guarded(keyset: Any, operands: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> torch.Tensor:
    """Every call outside of inference mode comes here first. The usual one runs at once: another round of the
    dispatcher would cost as much as the rest of it."""
    is_plain = keyset.raw_repr() == _PLAIN and forward_ad._current_level < 0
    if is_plain and not (_is_grad_enabled() and _any_requires_grad(operands)):
        return (_calls.get(plan) or prepared(plan))(operands, sizes)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(each).tangent is not None for each in operands):
        raise RuntimeError(NO_DERIVATIVE)
    if not (_is_grad_enabled() and _any_requires_grad(operands)):
        return _below_autograd(keyset, operands, sizes, plan)
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(NO_DERIVATIVE)
    return _Underivable.apply(keyset, sizes, plan, *operands)


def _below_autograd(keyset: Any, operands: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return call.redispatch(keyset & torch._C._after_autograd_keyset, list(operands), sizes, plan)


class _Underivable(torch.autograd.Function):  # type: ignore[misc]
    """A call whose result wants a gradient, as PyTorch's own would, and whose backward refuses when it runs: a model
    that is only evaluated may have parameters that want one."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, sizes: Sequence[int], plan: str, *operands: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*operands)
        return _below_autograd(keyset, operands, sizes, plan)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        operands = zip(ctx.saved_tensors, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(refused(gradient, each) if is_wanted else None for each, is_wanted in operands)


def _refuse(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(NO_DERIVATIVE)


# -- samples ------------------------------------------------------------------------------------------------------
def _batched(
    info: Any, in_dims: Any, operands: Sequence[torch.Tensor], sizes: Sequence[int], plan: str
) -> tuple[torch.Tensor, int]:
    """``torch.vmap``: one call for each sample, stacked."""
    axes = in_dims[0]
    results = [
        call([_sample(*each, index) for each in zip(operands, axes, strict=True)], sizes, plan)
        for index in range(info.batch_size)
    ]
    return torch.stack(results), 0


def _sample(tensor: torch.Tensor, axis: int | None, index: int) -> torch.Tensor:
    return tensor if axis is None else tensor.select(axis, index)


library = torch.library.Library(NAMESPACE, "DEF")
library.define("call(Tensor[] operands, SymInt[] sizes, str plan) -> Tensor")
library.impl("call", run, "CPU")
library.impl("call", run, "CUDA")
library.impl("call", _guarded, "Autograd", with_keyset=True)
torch.library.register_fake(f"{NAMESPACE}::call", _fake, lib=library)
torch.library.register_vmap(f"{NAMESPACE}::call", _batched, lib=library)
# What backward of a call runs: an operator, so that a compiled graph refuses when its backward runs, not before.
library.define("no_derivative(Tensor gradient, Tensor like) -> Tensor")
library.impl("no_derivative", _refuse, "CPU")
library.impl("no_derivative", _refuse, "CUDA")
torch.library.register_fake(f"{NAMESPACE}::no_derivative", lambda gradient, like: torch.empty_like(like), lib=library)

call = torch.ops.shapewright.call.default
refused = torch.ops.shapewright.no_derivative.default
# By a name that compiled code which was kept on disk finds again.
torch.ops.shapewright.direct = direct
