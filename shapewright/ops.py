"""The operators of the catalogue, by name: ``sw.ops.dense``; their ``doc`` gives shapes and the call's operands.

``sw.ops.program("out[m] = sum(k) x[m, k]")`` takes a program of one's own in their place; extents come as ``args``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import did_you_mean
from tuner.program.catalogue import OPS
from tuner.program.job.build import ProgramOp

# A test compares this with the catalogue.
__all__ = [
    "attention",
    "avg_pool2d",
    "batch_matmul_nn",
    "batch_matmul_nt",
    "bilinear",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "dense",
    "dense_int4",
    "depthwise_conv2d",
    "dilated_conv2d",
    "gemv",
    "group_conv2d",
    "layer_norm",
    "matmul",
    "max_pool2d",
    "moe_dense",
    "program",
    "ragged_attention",
    "reduce_max",
    "reduce_mean",
    "reduce_sum",
    "rms_norm",
    "softmax",
]


attention = OPS["attention"]
avg_pool2d = OPS["avg_pool2d"]
batch_matmul_nn = OPS["batch_matmul_nn"]
batch_matmul_nt = OPS["batch_matmul_nt"]
bilinear = OPS["bilinear"]
conv1d = OPS["conv1d"]
conv1d_transpose = OPS["conv1d_transpose"]
conv2d = OPS["conv2d"]
conv2d_transpose = OPS["conv2d_transpose"]
conv3d = OPS["conv3d"]
conv3d_transpose = OPS["conv3d_transpose"]
dense = OPS["dense"]
dense_int4 = OPS["dense_int4"]
depthwise_conv2d = OPS["depthwise_conv2d"]
dilated_conv2d = OPS["dilated_conv2d"]
gemv = OPS["gemv"]
group_conv2d = OPS["group_conv2d"]
layer_norm = OPS["layer_norm"]
matmul = OPS["matmul"]
max_pool2d = OPS["max_pool2d"]
moe_dense = OPS["moe_dense"]
ragged_attention = OPS["ragged_attention"]
reduce_max = OPS["reduce_max"]
reduce_mean = OPS["reduce_mean"]
reduce_sum = OPS["reduce_sum"]
rms_norm = OPS["rms_norm"]
softmax = OPS["softmax"]


def __getattr__(name: str) -> Any:
    meant = did_you_mean(name, OPS, {op.name: op.synonyms for op in OPS.values()})
    raise AttributeError(f"there is no operator {name!r} {f'({meant.strip()})' if meant else ''}".strip())


def program(
    text: str,
    constant: Sequence[str] = (),
    *,
    padded: Mapping[str, float] | None = None,
    outputs: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    domain: Mapping[str, tuple[float, float]] | None = None,
) -> ProgramOp:
    """A program in the notation of docs/reference/programs.md, for ``SearchTask(sw.ops.program(...), args=extents)``.

    ``constant`` names the inputs that are packed once; ``padded`` gives what is read outside of a tensor; ``shapes``
    where they do not follow from the axes. Nothing is checked before the extents are known.
    """
    return ProgramOp(
        text,
        tuple(constant),
        tuple((padded or {}).items()),
        None if outputs is None else tuple(outputs),
        tuple((name, tuple(shape)) for name, shape in (shapes or {}).items()),
        tuple((domain or {}).items()),
    )
