"""oneDNN with a constant packed ahead for the shape, through PyTorch's own operators, as torch.compile calls them once
a model is frozen. Activations are fused where oneDNN fuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.harness.calls import Array, Call, DoesNotApply
from benchmarks.rivals import torch_products
from benchmarks.rivals.torch_kernels import Args, int4_numbers, named
from benchmarks.rivals.torch_products import Prepared, tensor_of
from tuner.program.language.workload import Workload

Kernel = Callable[[Args, Sequence[Any]], Call]
ACTIVATIONS: Mapping[str, tuple[str, str]] = {"relu": ("relu", ""), "gelu": ("gelu", "none")}
"""oneDNN's name of an epilogue, and its algorithm."""


def prepare(workload: Workload) -> Prepared:
    """Raises DoesNotApply for an operand or a setting that the packed routine does not take."""
    name, args = named(workload)
    if name not in PACKED:
        return torch_products.onednn(workload)
    if args.get("layout", "nchw") != "nchw":
        raise DoesNotApply("it packs for channels first here")

    def call(inputs: Sequence[Array]) -> Call:
        try:
            return PACKED[name](args, [tensor_of(array) for array in inputs])
        except RuntimeError as error:
            # As for float16, which it packs only for CPUs that compute it.
            raise DoesNotApply(f"oneDNN does not pack it: {str(error).splitlines()[0]}") from error

    return call


def _linear(*epilogue: str) -> Kernel:
    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        x, weight, *others = inputs
        bias = others[0] if "bias" in epilogue else None
        activation, algorithm = _activation(epilogue)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
        function = torch.ops.mkldnn._linear_pointwise
        return lambda: function(x, packed, bias, activation, [], algorithm)

    return kernel


def _int4_linear(args: Args, inputs: Sequence[Any]) -> Call:
    """The weight as float32, computed ahead of all calls: the same results as with four bits, eight times the bytes."""
    x, halves, scales = inputs
    numbers = int4_numbers(halves)
    weight = (numbers - 8.0) * scales.repeat_interleave(args["group"], dim=1)[:, : numbers.shape[1]]
    return _linear()(args, [x, weight])


def _conv(rank: int, *epilogue: str, is_transpose: bool = False) -> Kernel:
    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        x, weight, *others = inputs
        bias = others[0] if "bias" in epilogue else None
        if weight.dim() == rank + 1:
            # A depthwise weight: each channel is a group.
            args, weight = {**args, "groups": len(weight)}, weight.unsqueeze(1)
        padding, stride, dilation = ([args[name]] * rank for name in ("pad", "stride", "dilation"))
        ops, groups, (activation, algorithm) = torch.ops.mkldnn, args["groups"], _activation(epilogue)
        if is_transpose:
            outer = [0] * rank
            settings: tuple[Any, ...] = (padding, outer, stride, dilation, groups)
            packed = ops._reorder_convolution_transpose_weight(weight, *settings, list(x.shape))
            function = ops._convolution_transpose_pointwise
        else:
            settings = (padding, stride, dilation, groups)
            packed = ops._reorder_convolution_weight(weight, *settings, list(x.shape))
            function = ops._convolution_pointwise
        return lambda: function(x, packed, bias, *settings, activation, [], algorithm)

    return kernel


def _activation(epilogue: Sequence[str]) -> tuple[str, str]:
    return next((ACTIVATIONS[name] for name in epilogue if name in ACTIVATIONS), ("none", ""))


PACKED: Mapping[str, Kernel] = {
    **dict.fromkeys(("dense", "dense_bfloat16"), _linear()), "dense+bias+gelu": _linear("bias", "gelu"),
    "dense_int4": _int4_linear,
    **dict.fromkeys(("conv2d", "group_conv2d", "dilated_conv2d", "depthwise_conv2d"), _conv(2)), "conv3d": _conv(3),
    "conv2d+bias+relu": _conv(2, "bias", "relu"), "conv2d_transpose": _conv(2, is_transpose=True),
}  # fmt: skip
"""What a constant is packed for; matrix products of other names are multiplied by torch_products."""
