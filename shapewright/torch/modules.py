"""Modules of PyTorch whose forward calls tuned libraries, and PyTorch's own where no library fits.

Each is a subclass of the module that it replaces, with the same parameters under the same names, so that state dicts,
hooks and whoever asks for its type see no difference. A tuned forward is for plain tensors and inference: where a
derivative is wanted, or PyTorch traces, transforms or casts what it computes, the original one runs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._device import DeviceContext

from shapewright.models.lifted import View
from shapewright.sources.reports import Report
from shapewright.torch.op import call
from shapewright.torch.packs import forget
from shapewright.torch.plan import DTYPES, Plan, Taken
from tuner.program.workload import Tensor, Workload

MAX_RANK = 6
"""Of an input whose leading axes are joined into rows."""
GRADIENTS = (
    "a gradient is wanted, and tuned kernels are for inference: PyTorch's own ran (torch.no_grad() has ours run)"
)
TRANSFORMED = "a transform of torch.func is active, and tuned kernels have no derivative: PyTorch's own ran"
TANGENTS = "forward-mode differentiation is active, and tuned kernels have no derivative: PyTorch's own ran"
AUTOCAST = "autocast is active, which chooses dtypes by PyTorch's operators: PyTorch's own ran"
TRACED = "torch.jit traces the model, and traces have PyTorch's own operators"
OVERRIDDEN = "a mode of torch.overrides is active, which PyTorch's own operators have to see: they ran"
MASKED = (
    "a mask of a TransformerEncoderLayer is of floats, one of two, or hides all from a word: PyTorch's fast path ran"
)
LAYOUT = "a tensor lies in memory in an order that PyTorch's own keeps, and tuned kernels do not: PyTorch's own ran"
SUBCLASS = "a tensor is nested, sparse, or of a class of its own: PyTorch's own ran"


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
        """Of a part for these tensors, the activation first; None where PyTorch's own must run."""
        bound = self.bound.get(part)
        if bound is None or any(tensor is not None and tensor.dtype is not bound.dtype for tensor in tensors):
            return None
        if self.must_be_pytorchs(*tensors):
            return None
        return bound.plans.get(tensors[0].dim())  # type: ignore[union-attr]

    def must_be_pytorchs(self, *tensors: torch.Tensor | None) -> bool:
        """Whether only PyTorch's own gives the right result for these tensors here. Says why."""
        reason = _obstacle() or next(filter(None, map(_unfit, tensors)), "")
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
        """Once for a model. Nothing while its code is compiled: that is not what runs."""
        if torch.compiler.is_compiling() or text in self.shapewright_report.notes:
            return
        self.shapewright_report.note([text])
        warnings.warn(f"shapewright: {text}", stacklevel=5)

    def train(self, mode: bool = True) -> Any:
        """As of any module. Training loops write to weights in many ways: what was packed of them is dropped."""
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


ADDED = ("__module__", "__prepare_scriptable__", "bound", "shapewright_report")
"""What ``optimize`` puts in a module."""


def _obstacle() -> str:
    """What is active that only PyTorch's own operators take part in; empty if nothing is."""
    if torch._C._are_functorch_transforms_active():
        return TRANSFORMED
    if forward_ad._current_level >= 0:
        return TANGENTS
    if torch.compiler.is_compiling():
        return AUTOCAST if torch.is_autocast_enabled("cpu") else ""
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    if torch._C._get_tracing_state() is not None:
        return TRACED
    if torch._C._len_torch_function_stack() and not all(
        isinstance(mode, DeviceContext) for mode in torch.overrides._get_current_function_mode_stack()
    ):
        return OVERRIDDEN
    return ""


def _unfit(tensor: torch.Tensor | None) -> str:
    """Why a tensor is none that a library reads; empty if it is one. A compiler's stand for such that are."""
    if tensor is None or torch.compiler.is_compiling() or isinstance(tensor, FakeTensor):
        return ""
    is_plain = type(tensor) is torch.Tensor or type(tensor) is nn.Parameter
    return "" if is_plain and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested else SUBCLASS


def wants_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd would record a call. A program that is exported is for inference."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def linear(module: Tuned, part: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear`` by the library of ``part``, which has the bias or not."""
    plan = module.plan(part, x, weight, bias)
    if plan is None:
        return functional.linear(x, weight, bias)
    sizes = [*x.shape[:-1], weight.shape[0]]
    if bias is not None and module.bound[part].inputs == 3:
        return module.called(plan, [x, weight, bias], sizes, lambda: functional.linear(x, weight, bias))
    out = module.called(plan, [x, weight], sizes, lambda: functional.linear(x, weight))
    return out if bias is None else out + bias


class TunedLinear(Tuned, nn.Linear):  # type: ignore[misc]
    """Part ``linear``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(self, "linear", input, self.weight, self.bias)


class TunedLayerNorm(Tuned, nn.LayerNorm):  # type: ignore[misc]
    """Part ``layer_norm``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("layer_norm", input, self.weight, self.bias)
        if plan is None:
            return super().forward(input)
        operands = [input, self.weight, self.bias]
        return self.called(plan, operands, input.shape, lambda: nn.LayerNorm.forward(self, input))


class TunedRMSNorm(Tuned, nn.RMSNorm):  # type: ignore[misc]
    """Part ``rms_norm``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.plan("rms_norm", x, self.weight)
        if plan is None or (x.dim() > 3 and self.are_channels_last(x)):
            return super().forward(x)
        return self.called(plan, [x, self.weight], x.shape, lambda: nn.RMSNorm.forward(self, x))


class TunedSoftmax(Tuned, nn.Softmax):  # type: ignore[misc]
    """Part ``softmax``: over the last axis."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("softmax", input)
        if plan is None or self.dim not in (-1, input.dim() - 1):
            return super().forward(input)
        return self.called(plan, [input], input.shape, lambda: nn.Softmax.forward(self, input))


class TunedConv2d(Tuned, nn.Conv2d):  # type: ignore[misc]
    """Part ``conv2d``: of zeros around the image, and the same stride, padding and dilation along both axes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("conv2d", input, self.weight, self.bias)
        if plan is None or self.are_channels_last(input, self.weight):
            return super().forward(input)
        operands = [input, self.weight] + ([] if self.bias is None else [self.bias])
        sizes = [input.shape[0], self.out_channels, *self._image(input.shape[2:])]
        return self.called(plan, operands, sizes, lambda: nn.Conv2d.forward(self, input))

    def _image(self, sizes: Sequence[int]) -> list[int]:
        """The output's height and width, of the input's."""
        return [
            (size + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel_size[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis, size in enumerate(sizes)
        ]


class TunedMultiheadAttention(Tuned, nn.MultiheadAttention):  # type: ignore[misc]
    """Self-attention without masks. Parts ``in_proj``, ``attention``, ``out_proj``, each with PyTorch's own in its
    place where it has no library."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        is_plain = query is key and key is value and self.in_proj_weight is not None
        is_plain = is_plain and key_padding_mask is None and attn_mask is None and not is_causal
        is_plain = is_plain and self.bias_k is None and not self.add_zero_attn and not need_weights
        is_plain = is_plain and not (self.training and self.dropout)
        is_plain = is_plain and not self._must_be_pytorchs(query)
        if not is_plain or query.dim() != 3 or query.shape[-1] != self.embed_dim:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        # The results of PyTorch's fast path lie batch by batch, all others word by word.
        in_batches = self.batch_first and self._has_fast_path()
        mixed = self._mixed(query if self.batch_first else query.transpose(0, 1))
        out = linear(
            self, "out_proj", mixed if in_batches else mixed.transpose(0, 1).contiguous(),
            self.out_proj.weight, self.out_proj.bias,
        )  # fmt: skip
        return (out.transpose(0, 1) if self.batch_first and not in_batches else out), None

    def _must_be_pytorchs(self, query: torch.Tensor) -> bool:
        return self.must_be_pytorchs(
            query, self.in_proj_weight, self.in_proj_bias, self.out_proj.weight, self.out_proj.bias
        )

    def _has_fast_path(self) -> bool:
        is_set = self.in_proj_bias is not None and self.out_proj.bias is not None
        return (
            is_set and not self.training and self.num_heads % 2 == 0 and torch.backends.mha.get_fastpath_enabled()
        )

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [b, s, e] to the heads' results side by side, [b, s, e]."""
        batch, length, size = x.shape
        joined = linear(self, "in_proj", x, self.in_proj_weight, self.in_proj_bias)
        heads = joined.view(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        plan, own = self.plan("attention", q, k, v), functools.partial(functional.scaled_dot_product_attention, q, k, v)
        mixed = own() if plan is None else self.called(plan, [q, k, v], q.shape, own)
        return mixed.transpose(1, 2).reshape(batch, length, size)


class TunedEncoderLayer(Tuned, nn.TransformerEncoderLayer):  # type: ignore[misc]
    """No library of its own: its modules have some, and PyTorch's fast path computes the layer past them."""

    def forward(
        self, src: torch.Tensor, src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None, is_causal: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        masks = [mask for mask in (src_mask, src_key_padding_mask) if mask is not None]
        is_plain = not self.training and src.dim() == 3 and not is_causal
        is_plain = is_plain and not self.must_be_pytorchs(src, *masks) and not self._is_turned(src)
        if not is_plain or self._may_hide_a_row(masks):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        attend = functools.partial(self._sa_block, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + self._ff_block(x))

    def _is_turned(self, src: torch.Tensor) -> bool:
        is_turned = not src.is_contiguous()
        if is_turned:
            self.say(LAYOUT)
        return is_turned

    def _may_hide_a_row(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether a word may have none to attend to: there PyTorch's fast path gives other values than its modules."""
        if not masks:
            return False
        is_known = len(masks) == 1 and masks[0].dtype is torch.bool and not torch.compiler.is_compiling()
        if is_known and not masks[0].all(-1).any():
            return False
        self.say(MASKED)
        return True
