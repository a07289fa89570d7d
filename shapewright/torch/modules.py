"""Modules of PyTorch whose forward calls tuned libraries, and PyTorch's own where no library fits.

Each is a subclass of the module that it replaces, with the same parameters under the same names, so that state dicts,
hooks and whoever asks for its type see no difference. A tuned forward is for inference: where a gradient is wanted the
original one runs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shapewright.models.lifted import View
from shapewright.sources.reports import Report
from shapewright.torch.op import call
from shapewright.torch.plan import DTYPES, Plan, Taken
from tuner.program.workload import Tensor, Workload

MAX_RANK = 6
"""Of an input whose leading axes are joined into rows."""
GRADIENTS = (
    "a gradient is wanted, and tuned kernels are for inference: PyTorch's own ran (torch.no_grad() has ours run)"
)


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
    """Its inputs in order, each as it is."""
    return [
        Taken((position,), _axes(tensor), packed=tensor.constant) for position, tensor in enumerate(workload.inputs)
    ]


def _axes(tensor: Tensor) -> View:
    return tuple((axis,) for axis in range(len(tensor.dims)))


class Tuned:
    """What tuned modules share. ``bound``: by what it is for, the library; ``report``: that of the whole model."""

    bound: dict[str, Bound]
    shapewright_report: Report

    def tuned(self, part: str, *tensors: torch.Tensor | None) -> str | None:
        """The plan of a part for these tensors, the activation first; None where PyTorch's own must run."""
        bound = self.bound.get(part)
        x = tensors[0]
        if bound is None or x is None or x.dtype is not bound.dtype or x.device.type != "cpu":
            return None
        if wants_gradient(*tensors):
            self.say(GRADIENTS)
            return None
        return bound.plans.get(x.dim())

    def say(self, text: str) -> None:
        """Once for a model. Nothing while its code is traced: what is traced is not what runs."""
        if torch.compiler.is_compiling() or text in self.shapewright_report.notes:
            return
        self.shapewright_report.note([text])
        warnings.warn(f"shapewright: {text}", stacklevel=4)


def wants_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd would record a call. A program that is exported is for inference."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def linear(module: Tuned, part: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear`` by the library of ``part``, which has the bias or not."""
    plan = module.tuned(part, x, weight, bias)
    if plan is None:
        return functional.linear(x, weight, bias)
    sizes = [*x.shape[:-1], weight.shape[0]]
    if bias is not None and module.bound[part].inputs == 3:
        return call([x, weight, bias], sizes, plan)
    out = call([x, weight], sizes, plan)
    return out if bias is None else out + bias


class TunedLinear(Tuned, nn.Linear):  # type: ignore[misc]
    """Part ``linear``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(self, "linear", input, self.weight, self.bias)


class TunedLayerNorm(Tuned, nn.LayerNorm):  # type: ignore[misc]
    """Part ``layer_norm``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.tuned("layer_norm", input, self.weight, self.bias)
        if plan is None:
            return super().forward(input)
        return call([input, self.weight, self.bias], list(input.shape), plan)


class TunedRMSNorm(Tuned, nn.RMSNorm):  # type: ignore[misc]
    """Part ``rms_norm``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.tuned("rms_norm", x, self.weight)
        return super().forward(x) if plan is None else call([x, self.weight], list(x.shape), plan)


class TunedSoftmax(Tuned, nn.Softmax):  # type: ignore[misc]
    """Part ``softmax``: over the last axis."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.tuned("softmax", input) if self.dim in (-1, input.dim() - 1) else None
        return super().forward(input) if plan is None else call([input], list(input.shape), plan)


class TunedConv2d(Tuned, nn.Conv2d):  # type: ignore[misc]
    """Part ``conv2d``: of zeros around the image, and the same stride, padding and dilation along both axes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.tuned("conv2d", input, self.weight, self.bias)
        if plan is None:
            return super().forward(input)
        height, width = (
            (size + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel_size[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis, size in enumerate(input.shape[2:])
        )
        operands = [input, self.weight] + ([] if self.bias is None else [self.bias])
        return call(operands, [input.shape[0], self.out_channels, height, width], plan)


class TunedMultiheadAttention(Tuned, nn.MultiheadAttention):  # type: ignore[misc]
    """Self-attention without masks. Parts ``in_proj``, ``attention``, ``out_proj``, each with PyTorch's own in its
    place where it has no library."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        is_plain = query is key and key is value and query.dim() == 3 and self.in_proj_weight is not None
        is_plain = is_plain and key_padding_mask is None and attn_mask is None and not is_causal
        is_plain = is_plain and self.bias_k is None and not self.add_zero_attn
        if not is_plain or need_weights or (self.training and self.dropout) or self._gradient(query):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        x = query if self.batch_first else query.transpose(0, 1)
        out = linear(self, "out_proj", self._mixed(x), self.out_proj.weight, self.out_proj.bias)
        return (out if self.batch_first else out.transpose(0, 1)), None

    def _gradient(self, query: torch.Tensor) -> bool:
        wanted = wants_gradient(query, self.in_proj_weight, self.out_proj.weight)
        if wanted:
            self.say(GRADIENTS)
        return wanted

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [b, s, e] to the heads' results side by side, [b, s, e]."""
        batch, length, size = x.shape
        joined = linear(self, "in_proj", x, self.in_proj_weight, self.in_proj_bias)
        heads = joined.view(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        plan = self.tuned("attention", q, k, v)
        mixed = (
            functional.scaled_dot_product_attention(q, k, v) if plan is None else call([q, k, v], list(q.shape), plan)
        )
        return mixed.transpose(1, 2).reshape(batch, length, size)
