"""The catalogue of operators: each is a few lines of the programs' own notation, with parameters.

An entry's ``program`` and ``extents`` are templates. ``args`` are extents (dims over shape variables), ``settings`` are
constants with defaults, put into the templates by name. How one is added: ``docs/howto/add-an-operator.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import InvalidInput, did_you_mean, shown
from tuner.program.catalogue.attention import attention, ragged_attention
from tuner.program.catalogue.convolutions import SPATIAL, conv, conv_transpose
from tuner.program.catalogue.operators import EPS, GROUP, WINDOW, Epilogue, Op, Setting

__all__ = ["EPILOGUES", "OPS", "Epilogue", "Op", "Setting", "op_named"]

_PLANE = SPATIAL[2]
_ROWS = {"m": "T", "n": "S"}
_WAVE = {"b": "B", "c": 5, "w": "T", "o": 9, "s": 3, "stride": 2}
_IMAGE: dict[str, Any] = {"b": "B", "c": 4, "h": "T", "w": 19, "r": 3, "s": 2, "pad": 1}
_VOLUME: dict[str, Any] = {"b": "B", "c": 2, "d": "T", "h": 3, "w": 4, "o": 3, "t": 2, "r": 3, "s": 3}


OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        Op(
            "dense", "out[m, n] = x[m, k] . w[n, k]^T; the weight w is constant: library.pack(w) packs it once",
            ("m", "n", "k"), "out[m, n] = sum(k) x[m, k] * w[n, k]", constant=("w",),
            example={"m": "4*T", "n": 200, "k": 120},
            synonyms=("linear", "fully_connected", "fc", "addmm", "gemm", "inner_product"),
        ),
        Op(
            "dense_int4",
            "out[m, n] = x[m, k] . weight[n, k]^T, weight = (four bits of w - 8) * s[n, k // group]; w[n, k // 2] of "
            "uint8, the lower half of a byte first, and s are constant",
            ("m", "n", "k"),
            "out[m, n] = sum(k) x[m, k]"
            " * ((cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32) - 8) * s[n, k // {group}])",
            constant=("w", "s"), settings={"group": GROUP}, dtypes={"w": "uint8"},
            example={"m": "T", "n": 45, "k": 70},
            synonyms=("linear_int4", "w4a16", "gptq", "awq"),
        ),
        Op(
            "matmul", "out[m, n] = x[m, k] . y[k, n], both operands new at every call",
            ("m", "n", "k"), "out[m, n] = sum(k) x[m, k] * y[k, n]",
            example={"m": "T", "n": "S", "k": "S"},
            synonyms=("mm", "gemm", "dot"),
        ),
        Op(
            "batch_matmul_nn", "out[b, m, n] = x[b, m, k] . y[b, k, n] for each b, both operands new at every call",
            ("b", "m", "n", "k"), "out[b, m, n] = sum(k) x[b, m, k] * y[b, k, n]",
            example={"b": "B", "m": "T", "n": "S", "k": "S"},
            synonyms=("bmm", "batch_matmul", "batched_gemm"),
        ),
        Op(
            "batch_matmul_nt", "out[b, m, n] = x[b, m, k] . y[b, n, k]^T for each b, both operands new at every call",
            ("b", "m", "n", "k"), "out[b, m, n] = sum(k) x[b, m, k] * y[b, n, k]",
            example={"b": "B", "m": "T", "n": "S", "k": "S"},
            synonyms=("bmm", "batch_matmul", "batched_gemm"),
        ),
        Op(
            "gemv", "y[n] = w[n, k] . x[k], both operands new at every call",
            ("n", "k"), "y[n] = sum(k) w[n, k] * x[k]",
            example={"n": "T", "k": "S"},
            synonyms=("mv", "matvec"),
        ),
        Op(
            "bilinear", "y[b, o] = u[b, :]^T w[o, :, :] v[b, :]; w is constant",
            ("b", "o", "i", "j"), "y[b, o] = sum(i, j) u[b, i] * w[o, i, j] * v[b, j]", constant=("w",),
            example={"b": "T", "o": 7, "i": 9, "j": 21},
        ),
        conv(1, "conv1d", example=_WAVE),
        conv(2, "conv2d", example=_IMAGE | {"o": 6}),
        conv(3, "conv3d", example=_VOLUME | {"h": 5, "w": 6, "s": 3, "pad": 1}),
        conv(
            2, "group_conv2d", "; conv2d by the name that is used where groups are more than 1",
            example=_IMAGE | {"o": 6, "groups": 2, "layout": "nhwc"},
        ),
        conv(
            2, "dilated_conv2d", "; conv2d by the name that is used where dilation is more than 1",
            example=_IMAGE | {"o": 6, "dilation": 2, "pad": 2},
        ),
        conv_transpose(1, "conv1d_transpose", example=_WAVE),
        conv_transpose(2, "conv2d_transpose", example=_IMAGE | {"o": 6, "stride": 2}),
        conv_transpose(3, "conv3d_transpose", example=_VOLUME),
        Op(
            "depthwise_conv2d",
            "each channel by a window of its own: x[b, c, h, w], weight[c, r, s] constant, out[b, c, p, q]",
            ("b", "c", "h", "w", "r", "s"), f"out[b, c, p, q] = sum(r, s) x[b, c, {_PLANE.reads}] * weight[c, r, s]",
            constant=("weight",), settings=WINDOW, sizes=_PLANE.out_sizes(), shapes={"x": "[b, c, h, w]"},
            padded={"x": 0.0}, channel="c",
            example=_IMAGE | {"dilation": 2, "pad": 3},
            synonyms=("depthwise", "dwconv", "conv2d_depthwise"),
        ),
        Op(
            "max_pool2d", "the largest of each window: x[b, c, h, w], out[b, c, p, q]; padding is -inf",
            ("b", "c", "h", "w", "r", "s"), f"out[b, c, p, q] = max(r, s) x[b, c, {_PLANE.reads}]",
            settings=WINDOW, sizes=_PLANE.out_sizes(), shapes={"x": "[b, c, h, w]"}, padded={"x": float("-inf")},
            channel="c",
            example=_IMAGE | {"stride": 2},
            synonyms=("max_pool", "maxpooling2d"),
        ),
        Op(
            "avg_pool2d", "the mean of each window, padding counted: x[b, c, h, w], out[b, c, p, q]",
            ("b", "c", "h", "w", "r", "s"),
            f"total[b, c, p, q] = sum(r, s) x[b, c, {_PLANE.reads}]\n"
            "out[b, c, p, q] = total[b, c, p, q] / (extent(r) * extent(s))",
            settings=WINDOW, sizes=_PLANE.out_sizes(), shapes={"x": "[b, c, h, w]"}, padded={"x": 0.0}, channel="c",
            example=_IMAGE,
            synonyms=("avg_pool", "average_pool2d", "mean_pool2d"),
        ),
        Op(
            "softmax", "out[m, n] = exp(x[m, n] - max over n) / their sum over n",
            ("m", "n"),
            "top[m] = max(n) x[m, n]\n"
            "e[m, n] = exp(x[m, n] - top[m])\n"
            "z[m] = sum(n) e[m, n]\n"
            "out[m, n] = e[m, n] / z[m]",
            example=_ROWS,
        ),
        Op(
            "layer_norm", "rows of x[m, n] to mean 0 and variance 1 over n, times gamma[n], plus beta[n]",
            ("m", "n"),
            "total[m] = sum(n) x[m, n]\n"
            "centred[m, n] = x[m, n] - total[m] / extent(n)\n"
            "square[m] = sum(n) centred[m, n] * centred[m, n]\n"
            "out[m, n] = centred[m, n] * rsqrt(square[m] / extent(n) + {eps!r}) * gamma[n] + beta[n]",
            settings={"eps": EPS},
            example=_ROWS,
            synonyms=("ln", "layer_normalization"),
        ),
        Op(
            "rms_norm", "rows of x[m, n] to mean square 1 over n, times gamma[n]",
            ("m", "n"),
            "square[m] = sum(n) x[m, n] * x[m, n]\n"
            "out[m, n] = x[m, n] * rsqrt(square[m] / extent(n) + {eps!r}) * gamma[n]",
            settings={"eps": EPS},
            example=_ROWS,
            synonyms=("rms_normalization",),
        ),
        Op("reduce_sum", "out[m] = sum over n of x[m, n]", ("m", "n"), "out[m] = sum(n) x[m, n]", example=_ROWS,
           synonyms=("sum",)),
        Op("reduce_max", "out[m] = largest over n of x[m, n]", ("m", "n"), "out[m] = max(n) x[m, n]", example=_ROWS,
           synonyms=("max", "amax")),
        Op(
            "reduce_mean", "out[m] = mean over n of x[m, n]",
            ("m", "n"), "total[m] = sum(n) x[m, n]\nout[m] = total[m] / extent(n)",
            example=_ROWS,
            synonyms=("mean", "average"),
        ),
        attention(),
        ragged_attention(),
        Op(
            "moe_dense", "out[t, n] = x[t, k] . w[expert[t], n, k]^T: x, w constant, expert[t] int32, out",
            ("t", "e", "n", "k"), "out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]", constant=("w",),
            shapes={"w": "[e, n, k]"},
            example={"t": "T", "e": 5, "n": 33, "k": 40},
            synonyms=("moe", "mixture_of_experts", "grouped_gemm"),
        ),
    )
}  # fmt: skip

EPILOGUES: Mapping[str, Epilogue] = {
    epilogue.name: epilogue
    for epilogue in (
        Epilogue("bias", "adds bias, one value for each channel of the output", "{x} + {operand}", "bias"),
        Epilogue("add", "adds residual, of the output's shape", "{x} + {operand}", "residual", whole=True),
        Epilogue("relu", "max(x, 0)", "where({x} < 0, 0, {x})"),
        Epilogue("gelu", "x * (1 + erf(x / sqrt 2)) / 2", "{x} * 0.5 * (1.0 + erf({x} * 0.7071067811865476))"),
        Epilogue(
            "gelu_tanh", "the tanh approximation of gelu",
            "{x} * 0.5 * (1.0 + tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * {x})))",
        ),
    )
}  # fmt: skip


def op_named(name: object) -> Op:
    """The operator of that name. Raises InvalidInput on field ``op``."""
    if isinstance(name, Op):
        return name
    if isinstance(name, str) and name in OPS:
        return OPS[name]
    meant = did_you_mean(name, OPS, {op.name: op.synonyms for op in OPS.values()})
    raise InvalidInput("op", f"{shown(name)} is not in the catalogue", f"{meant}one of: {', '.join(sorted(OPS))}")
