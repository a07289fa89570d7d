"""PyTorch's own kernel for each operator of the catalogue, with ``out=`` where there is one.

An entry takes the operator's args and settings and the inputs of a call as tensors, and gives the call. Programs that
are not in the catalogue have entries by their text (see operator_programs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.operator_programs import PROGRAMS
from benchmarks.rivals import Call, DoesNotApply, Prepared, tensor_of, torch_module
from tuner.program.catalogue import OPS
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, native

Args = Mapping[str, Any]
"""Args as the job gives them, settings with their defaults filled in."""
Kernel = Callable[[Args, Sequence[Any]], Call]
"""A function from the args and the inputs of a call, as tensors, to the call."""


def named(workload: Workload) -> tuple[str, Args]:
    """The workload's name among kernels, as ``dense`` or ``dense+bias+gelu``, and its args with all settings."""
    data = workload.to_json()
    chains = (name for name, text in PROGRAMS.items() if text == data.get("program"))
    op = str(data.get("op") or next(chains, ""))
    defaults = {key: setting.default for key, setting in OPS[op].settings.items()} if op in OPS else {}
    return "+".join([op, *data.get("epilogue", ())]), defaults | data.get("args", {})


def kernel_of(workload: Workload) -> Callable[[Sequence[Any]], Call]:
    """PyTorch's kernel, from tensors to the call. Raises DoesNotApply where it has none."""
    name, args = named(workload)
    if name not in KERNELS and name.partition("+")[0] in KERNELS:
        raise DoesNotApply(f"its kernels have no epilogue such as that of {name}")
    if name not in KERNELS:
        raise DoesNotApply(f"PyTorch has no kernel for {workload}")
    if name in OF_BYTES and saturates(native().hardware):
        raise DoesNotApply("without VNNI, oneDNN adds two products of bytes in 16 bits, and they saturate")
    return lambda tensors: KERNELS[name](args, tensors)


def saturates(hardware: Hardware) -> bool:
    """Whether oneDNN's kernels of bytes are exact for small numbers alone on this CPU."""
    return "avx2" in hardware.features and "avx512_vnni" not in hardware.features


def prepare(workload: Workload) -> Prepared:
    """PyTorch's kernel for the workload. Raises DoesNotApply where it has none."""
    kernel = kernel_of(workload)
    return lambda inputs: kernel([tensor_of(array) for array in inputs])


# -- products ---------------------------------------------------------------------------------------------------------
def _dense(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight = inputs
    return lambda: _functional().linear(x, weight)


def _quantized_dense(args: Args, inputs: Sequence[Any]) -> Call:
    """oneDNN's quantised linear layer, as torch.compile calls it; the weight is packed for the number of rows."""
    torch = torch_module()
    x, weight, scales = inputs
    packed = torch.ops.onednn.qlinear_prepack(weight, x.shape)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    result: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
    return lambda: torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scales, zeros, *result)


def _quantized_conv(is_channels_last: bool = False) -> Kernel:
    """oneDNN's quantised convolution, as torch.compile calls it; the weight is packed for the image."""

    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        torch = torch_module()
        x, weight, scales = inputs
        if is_channels_last:
            x, weight = (each.permute(0, 3, 1, 2) for each in (x, weight))
        ones, zeros, ops = [1, 1], torch.zeros(len(scales), dtype=torch.int64), torch.ops.onednn
        packed = ops.qconv_prepack(weight.contiguous(), scales, 1.0, 0, ones, ones, ones, 1, list(x.shape))
        settings: tuple[Any, ...] = (ones, ones, ones, 1, 1.0, 0, torch.float32, "none", [], "")

        def call() -> Any:
            result = ops.qconv_pointwise(x, 1.0, 0, packed, scales, zeros, None, *settings)
            return result.permute(0, 2, 3, 1) if is_channels_last else result

        return call

    return kernel


def _int4_dense(args: Args, inputs: Sequence[Any]) -> Call:
    """torchao's kernel for weights of four bits, ``(q - 8) * scale + zero`` by groups along k, in bfloat16: for float32
    it is a plain loop. Scales and x are rounded, x at each call; the output stays in bfloat16."""
    torch = torch_module()
    x, halves, scales = inputs
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(int4_numbers(halves).int(), 1)
    scales_and_zeros = torch.stack([scales.T, torch.zeros_like(scales.T)], dim=-1).bfloat16().contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda: multiply(x.bfloat16(), packed, args["group"], scales_and_zeros)


def int4_numbers(halves: Any) -> Any:
    """[n, k] of uint8, from two numbers in each byte of [n, k // 2], the lower half first."""
    return torch_module().stack([halves & 15, halves >> 4], dim=-1).flatten(1)


def _matmul(args: Args, inputs: Sequence[Any]) -> Call:
    x, y = inputs
    return _with_out(torch_module().matmul, x, y)


def _matmul_nt(args: Args, inputs: Sequence[Any]) -> Call:
    x, y = inputs
    return _with_out(torch_module().matmul, x, y.transpose(-1, -2))


def _gemv(args: Args, inputs: Sequence[Any]) -> Call:
    weight, x = inputs
    return _with_out(torch_module().mv, weight, x)


def _bilinear(args: Args, inputs: Sequence[Any]) -> Call:
    u, weight, v = inputs
    return lambda: _functional().bilinear(u, v, weight)


def _moe(args: Args, inputs: Sequence[Any]) -> Call:
    """Expert by expert, the rows of each gathered: PyTorch has no routine for all of them."""
    torch = torch_module()
    x, weight, expert = inputs
    out = torch.empty(x.shape[0], weight.shape[1], dtype=x.dtype)

    def call() -> Any:
        for index in range(weight.shape[0]):
            rows = (expert == index).nonzero().flatten()
            out.index_copy_(0, rows, _functional().linear(x.index_select(0, rows), weight[index]))
        return out

    return call


# -- windows ----------------------------------------------------------------------------------------------------------
def _conv(rank: int, name: str) -> Kernel:
    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        x, weight = (_channels_first(args, rank, inputs[0]), inputs[1])
        function = getattr(_functional(), name)
        settings = {"stride": args["stride"], "padding": args["pad"], "dilation": args["dilation"]}
        return lambda: function(x, weight, groups=args["groups"], **settings)

    return kernel


def _channels_first(args: Args, rank: int, x: Any) -> Any:
    """A view whose strides tell PyTorch where the channels lie."""
    return x if args["layout"] == "nchw" else x.permute(0, rank + 1, *range(1, rank + 1))


def _depthwise(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight = inputs[0], inputs[1].unsqueeze(1)
    settings = {"stride": args["stride"], "padding": args["pad"], "dilation": args["dilation"]}
    return lambda: _functional().conv2d(x, weight, groups=len(weight), **settings)


def _pool(name: str) -> Kernel:
    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        (x,), function = inputs, getattr(_functional(), name)
        settings = {"stride": args["stride"], "padding": args["pad"]}
        if name == "max_pool2d":
            settings["dilation"] = args["dilation"]
        elif args["dilation"] != 1:
            raise DoesNotApply("PyTorch's avg_pool2d has no dilation")
        return lambda: function(x, (args["r"], args["s"]), **settings)

    return kernel


# -- rows -------------------------------------------------------------------------------------------------------------
def _softmax(args: Args, inputs: Sequence[Any]) -> Call:
    return _with_out(torch_module().softmax, inputs[0], -1)


def _layer_norm(args: Args, inputs: Sequence[Any]) -> Call:
    x, gamma, beta = inputs
    return lambda: _functional().layer_norm(x, gamma.shape, gamma, beta, args["eps"])


def _rms_norm(args: Args, inputs: Sequence[Any]) -> Call:
    x, gamma = inputs
    return lambda: _functional().rms_norm(x, gamma.shape, gamma, args["eps"])


def _reduction(name: str) -> Kernel:
    return lambda args, inputs: _with_out(getattr(torch_module(), name), inputs[0], -1)


def _attention(args: Args, inputs: Sequence[Any]) -> Call:
    q, k, v = inputs
    if args["causal"] and q.shape[-2] != k.shape[-2]:
        raise DoesNotApply("PyTorch hides j > i, whatever the extents of i and j")
    settings = {"is_causal": args["causal"], "scale": args["scale"]}
    return lambda: _functional().scaled_dot_product_attention(q, k, v, **settings)


# -- chains of elementwise operations -----------------------------------------------------------------------------
def _swiglu(args: Args, inputs: Sequence[Any]) -> Call:
    x, y = inputs
    return lambda: _functional().silu(x).mul_(y)


def _gelu_residual(args: Args, inputs: Sequence[Any]) -> Call:
    x, y = inputs
    return lambda: _functional().gelu(x).add_(y)


# -- programs that are no operators of the catalogue -------------------------------------------------------------------
def _column_sum(args: Args, inputs: Sequence[Any]) -> Call:
    return _with_out(torch_module().sum, inputs[0], 0)


def _vector_matrix(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight = inputs
    return _with_out(torch_module().mv, weight.t(), x)


def _transpose(args: Args, inputs: Sequence[Any]) -> Call:
    x = inputs[0].transpose(1, 2)
    # Not x.contiguous(): where a dim is 1 that is x itself, and copies nothing.
    out = torch_module().empty(x.shape)
    return lambda: out.copy_(x)


def _depthwise_nhwc(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight = inputs[0].permute(0, 3, 1, 2), inputs[1].permute(2, 0, 1).unsqueeze(1).contiguous()
    return lambda: _functional().conv2d(x, weight, padding=1, groups=len(weight))


def _segment_attention(args: Args, inputs: Sequence[Any]) -> Call:
    """A mask from the segments at every call: they are new at each."""
    q, k, segment, v = inputs
    q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))

    def call() -> Any:
        mask = segment.unsqueeze(1) == segment.unsqueeze(0)
        return _functional().scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(0)

    return call


# -- with an epilogue -------------------------------------------------------------------------------------------------
def _dense_bias_gelu(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight, bias = inputs
    return lambda: _functional().gelu(_functional().linear(x, weight, bias))


def _conv2d_bias_relu(args: Args, inputs: Sequence[Any]) -> Call:
    x, weight, bias = inputs
    settings = {"stride": args["stride"], "padding": args["pad"], "dilation": args["dilation"]}
    return lambda: _functional().conv2d(x, weight, bias, groups=args["groups"], **settings).relu_()


def _batch_matmul_add(args: Args, inputs: Sequence[Any]) -> Call:
    x, y, residual = inputs
    return _with_out(torch_module().baddbmm, residual, x, y)


def _rms_norm_mul(args: Args, inputs: Sequence[Any]) -> Call:
    x, gamma, y = inputs
    return lambda: _functional().rms_norm(x, gamma.shape, gamma, OPS["rms_norm"].settings["eps"].default).mul_(y)


def _mlp(args: Args, inputs: Sequence[Any]) -> Call:
    (x, first, bias, second, further), linear, gelu = inputs, _functional().linear, _functional().gelu
    return lambda: linear(gelu(linear(x, first, bias)), second, further)


def _swiglu_mlp(args: Args, inputs: Sequence[Any]) -> Call:
    (x, first, gate, second), linear, silu = inputs, _functional().linear, _functional().silu
    return lambda: linear(silu(linear(x, first)).mul_(linear(x, gate)), second)


KERNELS: Mapping[str, Kernel] = {
    "dense": _dense, "matmul": _matmul, "batch_matmul_nn": _matmul, "batch_matmul_nt": _matmul_nt, "gemv": _gemv,
    "bilinear": _bilinear, "moe_dense": _moe,
    **{f"conv{rank}d": _conv(rank, f"conv{rank}d") for rank in (1, 2, 3)},
    **{f"conv{rank}d_transpose": _conv(rank, f"conv_transpose{rank}d") for rank in (1, 2, 3)},
    "group_conv2d": _conv(2, "conv2d"), "dilated_conv2d": _conv(2, "conv2d"), "depthwise_conv2d": _depthwise,
    "max_pool2d": _pool("max_pool2d"), "avg_pool2d": _pool("avg_pool2d"),
    "softmax": _softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "reduce_sum": _reduction("sum"), "reduce_max": _reduction("amax"), "reduce_mean": _reduction("mean"),
    "attention": _attention, "swiglu": _swiglu, "gelu_residual": _gelu_residual,
    "column_sum": _column_sum, "vector_matrix": _vector_matrix, "transpose": _transpose,
    "depthwise_nhwc": _depthwise_nhwc, "dense_bfloat16": _dense, "dense_int8": _quantized_dense,
    "conv2d_int8": _quantized_conv(), "conv2d_int8_nhwc": _quantized_conv(is_channels_last=True),
    "segment_attention": _segment_attention,
    "dense+bias+gelu": _dense_bias_gelu, "conv2d+bias+relu": _conv2d_bias_relu,
    "batch_matmul_nn+add": _batch_matmul_add, "rms_norm_mul": _rms_norm_mul,
    "mlp": _mlp, "swiglu_mlp": _swiglu_mlp,
    "dense_int4": _int4_dense,
}  # fmt: skip


OF_BYTES = frozenset({"dense_int8", "conv2d_int8", "conv2d_int8_nhwc"})
"""Kernels of oneDNN that multiply bytes."""


def _with_out(function: Any, *operands: Any) -> Call:
    """The call with an output that is there already; under torch.compile, which makes its own, without."""
    if torch_module().compiler.is_compiling():
        return lambda: function(*operands)
    out = function(*operands)
    return lambda: function(*operands, out=out)


def _functional() -> Any:
    return torch_module().nn.functional
