"""Routines of MKL and oneDNN, through PyTorch, which ships both: each called as its users call it, a constant packed
ahead where the routine has a way to, as torch.compile calls them once a model is frozen. Activations are fused where
oneDNN fuses them. Those for matrix products take what our contraction rule takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness.calls import Array, Call, DoesNotApply
from benchmarks.harness.suite import Args, named
from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch
from tuner.schedule.product.match.plain import Matrices, match

Prepared = Callable[[Sequence[Array]], Call]
"""A function from all inputs of a call in order, constants among them, to the call. Made once for a workload."""
Kernel = Callable[[Args, Sequence[Any]], Call]
Operands = Callable[[Sequence[Array]], tuple[Any, Any]]


def tensor_of(array: Array) -> Any:
    """PyTorch's view of ``array``, which has no gaps."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def int4_numbers(halves: Any) -> Any:
    """[n, k] of uint8, from two numbers in each byte of [n, k // 2], the lower half first."""
    return torch.stack([halves & 15, halves >> 4], dim=-1).flatten(1)


def contraction_of(workload: Workload) -> Matrices:
    """The roles of a matrix product without an epilogue. Raises DoesNotApply for any other workload."""
    matched = match(workload)
    if isinstance(matched, NoMatch):
        raise DoesNotApply(f"it multiplies matrices: {matched.reason}")
    if matched.result.epilogue:
        raise DoesNotApply("it multiplies matrices and has no epilogue")
    return matched


def _matrices(workload: Workload, *, batched: bool = False) -> tuple[Matrices, Operands]:
    """The roles of the operands, and what gives them as [..., m, k] and [..., k, n], a view where one lies the other
    way. Raises DoesNotApply, also for a batch where one product is wanted, and the other way round."""
    roles, names = contraction_of(workload), [tensor.name for tensor in workload.inputs]
    if any(tensor.dtype != "float32" for tensor in workload.operands):
        raise DoesNotApply("it multiplies float32 here")
    if batched and not roles.has_batch:
        raise DoesNotApply("bmm multiplies batches of matrices; mm is the call for two matrices")
    if roles.has_batch and not batched:
        raise DoesNotApply("it multiplies two matrices; bmm is the call for a batch of them")

    def operands(inputs: Sequence[Array]) -> tuple[Any, Any]:
        left, right = (tensor_of(inputs[names.index(each.tensor)]) for each in (roles.left, roles.right))
        return left, right if roles.right.lies_along_n else right.transpose(-1, -2)

    return roles, operands


def mm(workload: Workload) -> Prepared:
    return _on(_matrices(workload)[1], partial(_with_out, torch.mm))


def bmm(workload: Workload) -> Prepared:
    return _on(_matrices(workload, batched=True)[1], partial(_with_out, torch.bmm))


def _on(operands: Operands, prepared: Callable[[Any, Any], Call]) -> Prepared:
    return lambda inputs: prepared(*operands(inputs))


def _with_out(function: Any, a: Any, b: Any) -> Call:
    return partial(function, a, b, out=torch.empty(*a.shape[:-1], b.shape[-1]))


def linear(workload: Workload) -> Prepared:
    roles, operands = _matrices(workload)
    if roles.right.lies_along_n:
        raise DoesNotApply("linear multiplies by a transposed operand; mm is the call for this one")
    return _on(operands, lambda x, weight: partial(torch.nn.functional.linear, x, weight.T))


def mkl(workload: Workload) -> Prepared:
    """MKL with the weight packed for the very number of rows that it is called with."""
    roles, operands = _matrices(workload)
    if not roles.right.is_packed_ahead:
        raise DoesNotApply("nothing is constant, so nothing can be packed ahead: mm is MKL here")

    def prepared(x: Any, weight: Any) -> Call:
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.T, len(x))
        return partial(torch.ops.mkl._mkl_linear, x, packed, weight.T, None, len(x))

    return _on(operands, prepared)


def onednn(workload: Workload) -> Prepared:
    """oneDNN with the weight packed for the number of rows, or its linear on the operand as it is."""
    roles, operands = _matrices(workload)
    return _on(operands, lambda x, weight: _pointwise(x, weight.T, is_packed=roles.right.is_packed_ahead))


def _pointwise(x: Any, weight: Any, bias: Any = None, epilogue: Sequence[str] = (), *, is_packed: bool = True) -> Call:
    activation, algorithm = _activation(epilogue)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x)) if is_packed else weight
    return partial(torch.ops.mkldnn._linear_pointwise, x, packed, bias, activation, [], algorithm)


# -- oneDNN with a constant packed for the shape ----------------------------------------------------------------------
ACTIVATIONS: Mapping[str, tuple[str, str]] = {"relu": ("relu", ""), "gelu": ("gelu", "none")}
"""oneDNN's name of an epilogue, and its algorithm."""


def packed(workload: Workload) -> Prepared:
    """Raises DoesNotApply for an operand or a setting that the packed routine does not take."""
    name, args = named(workload)
    if name not in PACKED:
        return onednn(workload)

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
        return _pointwise(x, weight, others[0] if "bias" in epilogue else None, epilogue)

    return kernel


def _int4_linear(args: Args, inputs: Sequence[Any]) -> Call:
    """The weight in x's dtype, computed ahead of all calls: the results as with four bits, four or eight times the
    bytes."""
    x, halves, scales = inputs
    numbers = int4_numbers(halves)
    weight = (numbers - 8.0) * scales.repeat_interleave(args["group"], dim=1)[:, : numbers.shape[1]]
    return _linear()(args, [x, weight.to(x.dtype)])


def _experts(args: Args, inputs: Sequence[Any]) -> Call:
    """The weight of each expert packed for the rows that it has in the mean."""
    x, weight, expert = inputs
    packed = [torch.ops.mkldnn._reorder_linear_weight(each, max(1, len(x) // len(weight))) for each in weight]
    layers = [lambda rows, each=each: _pointwise(rows, each, is_packed=False)() for each in packed]
    return by_expert(x, expert, weight.shape[1], layers)


def by_expert(x: Any, expert: Any, columns: int, layers: Sequence[Callable[[Any], Any]]) -> Call:
    """Expert by expert, the rows of each gathered for its layer: PyTorch has no routine for all of them."""
    out = torch.empty(x.shape[0], columns, dtype=x.dtype)

    def call() -> Any:
        for index, layer in enumerate(layers):
            rows = (expert == index).nonzero().flatten()
            out.index_copy_(0, rows, layer(x.index_select(0, rows)))
        return out

    return call


def _conv(rank: int, *epilogue: str, is_transpose: bool = False) -> Kernel:
    def kernel(args: Args, inputs: Sequence[Any]) -> Call:
        x, weight, *others = inputs
        # A view whose strides tell oneDNN where the channels lie.
        x = x.movedim(-1, 1) if args.get("layout") == "nhwc" else x
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
    "dense_int4": _int4_linear, "moe_dense": _experts,
    **dict.fromkeys(("conv2d", "group_conv2d", "dilated_conv2d", "depthwise_conv2d"), _conv(2)), "conv3d": _conv(3),
    "conv2d+bias+relu": _conv(2, "bias", "relu"), "conv2d_transpose": _conv(2, is_transpose=True),
}  # fmt: skip
"""What a constant is packed for; matrix products of other names are multiplied by ``onednn``."""


# -- the bandwidth of memory ------------------------------------------------------------------------------------------
def stream(read_bytes: int, written_bytes: int) -> Call:
    """How fast memory can be read and written here: so many bytes, rounded to whole floats, by PyTorch's vector code.

    Every output byte is written once and every input byte read once, at the same sizes as a workload's, so that the
    same caches serve both. Writes read their lines first, as those of ordinary kernels do. The output is the sum of two
    inputs; inputs that are left over are summed up, an output that is left over is filled.
    """
    reads, writes = max(2, read_bytes // 4), max(1, written_bytes // 4)
    moved = min(writes, reads // 2)
    first, second, out = torch.ones(moved), torch.ones(moved), torch.empty(writes)
    rest, ahead, behind = torch.ones(reads - 2 * moved), out[:moved], out[moved:]

    def call() -> None:
        torch.add(first, second, out=ahead)
        if len(behind):
            behind.fill_(1.0)
        if len(rest):
            rest.sum()

    return call
