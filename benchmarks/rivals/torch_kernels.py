"""PyTorch's own kernel for each operator of the catalogue, and for the programs of its suites.

A kernel is a function from the operator's args (its settings filled in) and the inputs of a call, as tensors, to the
result. What is done ahead of all calls, as packing a weight, is in PREPARED, whose entries give the call.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness.calls import Array, Call, DoesNotApply
from benchmarks.harness.suite import Args, named
from benchmarks.harness.turns import MIN_ROUNDS, alternate, sampler
from benchmarks.rivals.torch_products import Prepared, by_expert, int4_numbers, tensor_of
from tuner.program.catalogue import OPS
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, native

Kernel = Callable[..., Any]
COMPILE_LIMIT_S = 120.0
WARM_CALLS = 2
"""The second one shows whether what was compiled holds for the shape."""


def kernel_of(workload: Workload) -> Callable[[Sequence[Any]], Call]:
    """PyTorch's kernel, from tensors to the call. Raises DoesNotApply where it has none."""
    name, args = named(workload)
    known = KERNELS.keys() | WITH_OUT.keys() | PREPARED.keys()
    if name not in known:
        if name.partition("+")[0] in known:
            raise DoesNotApply(f"its kernels have no epilogue such as that of {name}")
        raise DoesNotApply("PyTorch has no kernel for it")
    if name in OF_BYTES and saturates(native().hardware):
        raise DoesNotApply("without VNNI, oneDNN adds two products of bytes in 16 bits, and they saturate")
    if name in PREPARED:
        return lambda tensors: PREPARED[name](args, *tensors)
    if name in WITH_OUT:
        return lambda tensors: _with_out(*WITH_OUT[name](*tensors))
    return lambda tensors: partial(KERNELS[name], args, *tensors)


def saturates(hardware: Hardware) -> bool:
    """Whether oneDNN's kernels of bytes are exact for small numbers alone on this CPU."""
    return "avx2" in hardware.features and "avx512_vnni" not in hardware.features


def prepare(workload: Workload) -> Prepared:
    kernel = kernel_of(workload)
    return lambda inputs: kernel([tensor_of(array) for array in inputs])


def _with_out(function: Any, *operands: Any) -> Call:
    """The call with an output that is there already; under torch.compile, which makes its own, without."""
    if torch.compiler.is_compiling():
        return lambda: function(*operands)
    out = function(*operands)
    return lambda: function(*operands, out=out)


# -- products ---------------------------------------------------------------------------------------------------------
def _quantized_dense(args: Args, x: Any, weight: Any, scales: Any) -> Call:
    """oneDNN's quantised linear layer, as torch.compile calls it; the weight is packed for the number of rows."""
    packed = torch.ops.onednn.qlinear_prepack(weight, x.shape)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    result: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
    return lambda: torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scales, zeros, *result)


def _quantized_conv(args: Args, x: Any, weight: Any, scales: Any, *, nhwc: bool = False) -> Call:
    """oneDNN's quantised convolution, as torch.compile calls it; the weight is packed for the image."""
    if nhwc:
        x, weight = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    ones, zeros, ops = [1, 1], torch.zeros(len(scales), dtype=torch.int64), torch.ops.onednn
    packed = ops.qconv_prepack(weight.contiguous(), scales, 1.0, 0, ones, ones, ones, 1, list(x.shape))
    settings: tuple[Any, ...] = (ones, ones, ones, 1, 1.0, 0, torch.float32, "none", [], "")
    call = partial(ops.qconv_pointwise, x, 1.0, 0, packed, scales, zeros, None, *settings)
    return (lambda: call().permute(0, 2, 3, 1)) if nhwc else call


def _int4_dense(args: Args, x: Any, halves: Any, scales: Any) -> Call:
    """torchao's kernel for weights of four bits, ``(q - 8) * scale + zero`` by groups along k, in bfloat16: for float32
    it is a plain loop. Scales and x are rounded, x at each call; the output stays in bfloat16."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(int4_numbers(halves).int(), 1)
    scales_and_zeros = torch.stack([scales.T, torch.zeros_like(scales.T)], dim=-1).bfloat16().contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda: multiply(x.bfloat16(), packed, args["group"], scales_and_zeros)


def _moe(args: Args, x: Any, weight: Any, expert: Any) -> Call:
    return by_expert(x, expert, weight.shape[1], [partial(functional.linear, weight=each) for each in weight])


# -- windows ----------------------------------------------------------------------------------------------------------
def _window(args: Args) -> dict[str, Any]:
    return {"stride": args["stride"], "padding": args["pad"], "dilation": args["dilation"]}


def _conv(rank: int, function: Kernel) -> Kernel:
    def kernel(args: Args, x: Any, weight: Any) -> Any:
        # A view whose strides tell PyTorch where the channels lie.
        x = x if args["layout"] == "nchw" else x.permute(0, rank + 1, *range(1, rank + 1))
        return function(x, weight, groups=args["groups"], **_window(args))

    return kernel


def _avg_pool2d(args: Args, x: Any) -> Call:
    if args["dilation"] != 1:
        raise DoesNotApply("PyTorch's avg_pool2d has no dilation")
    return lambda: functional.avg_pool2d(x, (args["r"], args["s"]), args["stride"], args["pad"])


def _depthwise_nhwc(args: Args, x: Any, weight: Any) -> Call:
    x, weight = x.permute(0, 3, 1, 2), weight.permute(2, 0, 1).unsqueeze(1).contiguous()
    return lambda: functional.conv2d(x, weight, padding=1, groups=len(weight))


def _capsules(args: Args, image: Any, weight: Any) -> Call:
    """The faster of einsum, a matrix product of the windows, and a convolution of c * m channels for each i."""
    (b, c, height, width, i, m), (k, _, r, s, _, j) = image.shape, weight.shape
    windows = image.unfold(2, r, 2).unfold(3, s, 2)
    merged = weight.permute(0, 5, 1, 4, 2, 3).reshape(k * j, c * m, r, s)

    def convolution() -> Any:
        images = image.permute(0, 4, 1, 5, 2, 3).reshape(b * i, c * m, height, width)
        out = functional.conv2d(images, merged, stride=2)
        return out.reshape(b, i, k, j, *out.shape[2:]).permute(0, 2, 4, 5, 1, 3)

    return _faster(convolution, lambda: torch.einsum("bcpqimrs,kcrsmj->bkpqij", windows, weight))


def _faster(first: Call, second: Call) -> Call:
    """Timed ahead of all calls; under torch.compile, which times nothing, the first."""
    if torch.compiler.is_compiling():
        return first
    times = alternate({"first": sampler(first), "second": sampler(second)}, rounds=MIN_ROUNDS)
    return first if times["first"] <= times["second"] else second


# -- rows, attention, what is fused -----------------------------------------------------------------------------------
def _transpose(args: Args, x: Any) -> Call:
    # Not x.contiguous(): where a dim is 1 that is x itself, and copies nothing.
    turned = x.transpose(1, 2)
    out = torch.empty(turned.shape)
    return lambda: out.copy_(turned)


def _copy(args: Args, x: Any) -> Call:
    return partial(torch.empty_like(x).copy_, x)


def _attention(args: Args, q: Any, k: Any, v: Any) -> Call:
    is_causal, scale = args["causal"], args["scale"]
    if is_causal and q.shape[-2] != k.shape[-2]:
        raise DoesNotApply("PyTorch hides j > i, whatever the extents of i and j")
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)


def _segment_attention(args: Args, q: Any, k: Any, segment: Any, v: Any) -> Any:
    """A mask from the segments at every call: they are new at each."""
    mask = segment.unsqueeze(1) == segment.unsqueeze(0)
    q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(0)


_RMS_EPS: Any = OPS["rms_norm"].settings["eps"].default
KERNELS: Mapping[str, Kernel] = {
    **dict.fromkeys(("dense", "dense_bfloat16"), lambda args, x, weight: functional.linear(x, weight)),
    "bilinear": lambda args, u, weight, v: functional.bilinear(u, v, weight),
    **{f"conv{rank}d": _conv(rank, getattr(functional, f"conv{rank}d")) for rank in (1, 2, 3)},
    **{f"conv{rank}d_transpose": _conv(rank, getattr(functional, f"conv_transpose{rank}d")) for rank in (1, 2, 3)},
    **dict.fromkeys(("group_conv2d", "dilated_conv2d"), _conv(2, functional.conv2d)),
    "depthwise_conv2d": lambda args, x, w: functional.conv2d(x, w.unsqueeze(1), groups=len(w), **_window(args)),
    "max_pool2d": lambda args, x: functional.max_pool2d(x, (args["r"], args["s"]), **_window(args)),
    "layer_norm": lambda args, x, gamma, beta: functional.layer_norm(x, gamma.shape, gamma, beta, args["eps"]),
    "rms_norm": lambda args, x, gamma: functional.rms_norm(x, gamma.shape, gamma, args["eps"]),
    "swiglu": lambda args, x, y: functional.silu(x).mul_(y),
    "gelu_residual": lambda args, x, y: functional.gelu(x).add_(y),
    "segment_attention": _segment_attention,
    "mlp": lambda args, x, w1, b1, w2, b2: functional.linear(functional.gelu(functional.linear(x, w1, b1)), w2, b2),
    "swiglu_mlp": lambda args, x, w1, w3, w2: functional.linear(
        functional.silu(functional.linear(x, w1)).mul_(functional.linear(x, w3)), w2
    ),
    "dense+bias+gelu": lambda args, x, weight, bias: functional.gelu(functional.linear(x, weight, bias)),
    "conv2d+bias+relu": lambda args, x, weight, bias: functional.conv2d(
        x, weight, bias, groups=args["groups"], **_window(args)
    ).relu_(),
    "fused_rms_norm_mul": lambda args, x, gamma, y: functional.rms_norm(x, gamma.shape, gamma, _RMS_EPS).mul_(y),
}  # fmt: skip
WITH_OUT: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys(("matmul", "batch_matmul_nn"), lambda x, y: (torch.matmul, x, y)),
    "batch_matmul_nt": lambda x, y: (torch.matmul, x, y.transpose(-1, -2)),
    "batch_matmul_nn+add": lambda x, y, residual: (torch.baddbmm, residual, x, y),
    "gemv": lambda weight, x: (torch.mv, weight, x), "vector_matrix": lambda x, weight: (torch.mv, weight.t(), x),
    "softmax": lambda x: (torch.softmax, x, -1), "reduce_sum": lambda x: (torch.sum, x, -1),
    "reduce_max": lambda x: (torch.amax, x, -1), "reduce_mean": lambda x: (torch.mean, x, -1),
    "column_sum": lambda x: (torch.sum, x, 0), "fast_dlight_add": lambda x, y: (torch.add, x, y),
    "fast_dlight_matmul_nt": lambda x, y: (torch.matmul, x, y.t()),
}  # fmt: skip
"""Functions that take ``out=``, and their operands."""
PREPARED: Mapping[str, Callable[..., Call]] = {
    "dense_int8": _quantized_dense, "dense_int4": _int4_dense, "moe_dense": _moe, "conv2d_int8": _quantized_conv,
    "conv2d_int8_nhwc": partial(_quantized_conv, nhwc=True), "avg_pool2d": _avg_pool2d,
    "depthwise_nhwc": _depthwise_nhwc, "transpose": _transpose, "attention": _attention, "fast_dlight_copy": _copy,
    "neoflow_capsules": _capsules,
}  # fmt: skip
OF_BYTES = frozenset({"dense_int8", "conv2d_int8", "conv2d_int8_nhwc"})
"""Kernels of oneDNN that multiply bytes."""


# -- torch.compile ----------------------------------------------------------------------------------------------------
def compiled(workload: Workload) -> Prepared:
    """torch.compile: one function for all shapes, which are dynamic, constants frozen where PyTorch can.

    The first calls compile, and compile again where a size is 1; an operator that spends more than COMPILE_LIMIT_S on
    that is left out, with what it took as the reason. Raises DoesNotApply where PyTorch has no kernel to compile; the
    calls raise it where compilation fails.
    """
    kernel, module = kernel_of(workload), list[Any]()
    left_s = COMPILE_LIMIT_S
    # One whose dims depend on the shape is another tensor at every shape.
    constants = [
        position for position, tensor in enumerate(workload.inputs)
        if tensor.constant and all(dim.constant is not None for dim in tensor.dims)
    ]  # fmt: skip

    def call(inputs: Sequence[Array]) -> Call:
        nonlocal left_s
        tensors, started = [tensor_of(array) for array in inputs], time.monotonic()
        varying = [tensor for position, tensor in enumerate(tensors) if position not in constants]

        def run() -> Any:
            with torch.no_grad():
                return module[0](*varying)

        try:
            with deadline(left_s, f"torch.compile took longer than {COMPILE_LIMIT_S:g} s"):
                is_first = not module
                if is_first:
                    # Constants are the same at every shape: a module for each would be compiled anew.
                    module.append(_module(kernel, tensors, constants, freezing=True))
                try:
                    _warm(run)
                except DoesNotApply:
                    if not is_first or time.monotonic() - started >= left_s:
                        raise
                    # PyTorch 2.13 cannot freeze a convolution whose batch is dynamic.
                    module[0] = _module(kernel, tensors, constants, freezing=False)
                    _warm(run)
        finally:
            left_s -= time.monotonic() - started
        return run

    return call


def _warm(run: Call) -> None:
    """Compiles. Raises DoesNotApply where that fails."""
    try:
        for _ in range(WARM_CALLS):
            run()
    except torch._dynamo.exc.TorchDynamoException as error:
        raise DoesNotApply(f"torch.compile fails: {' '.join(str(error).split())[:300]}") from error


class _Operator(torch.nn.Module):  # type: ignore[misc]
    """The kernel with its constants as parameters, which freezing takes for constants."""

    def __init__(self, kernel: Any, tensors: Sequence[Any], constants: Sequence[int]) -> None:
        super().__init__()
        self.kernel, self.count, self.constants = kernel, len(tensors), constants
        frozen = (torch.nn.Parameter(tensors[position], requires_grad=False) for position in constants)
        self.frozen = torch.nn.ParameterList(frozen)

    def forward(self, *varying: Any) -> Any:
        operands, others = dict(zip(self.constants, self.frozen, strict=True)), iter(varying)
        return self.kernel([operands[at] if at in operands else next(others) for at in range(self.count)])()


def _module(kernel: Any, tensors: Sequence[Any], constants: Sequence[int], *, freezing: bool) -> Any:
    torch._dynamo.reset()
    return torch.compile(_Operator(kernel, tensors, constants).eval(), dynamic=True, options={"freezing": freezing})


@contextmanager
def deadline(seconds: float, reason: str) -> Iterator[None]:
    """DoesNotApply with this reason after so many seconds, in the main thread of a process."""

    def stop(*_: object) -> None:
        raise DoesNotApply(reason)

    if seconds <= 0:
        raise DoesNotApply(reason)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
