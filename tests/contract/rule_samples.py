"""Workloads of a job file that each rule takes, by the rule's name: the contract suite runs over them all.

Shape variables T, S and U run over RANGE. A rule's own samples show what it is for: every kind of axis, operand and
element type that its pattern admits, each as small as it can be and still have ragged ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target

RANGE = range(1, 65)


def _op(name: str, dtype: object = "float32", epilogue: tuple[str, ...] = (), **args: Any) -> dict[str, Any]:
    return {"op": name, "args": args, "dtype": dtype, "epilogue": list(epilogue)}


def _program(text: str, **fields: Any) -> dict[str, Any]:
    return {"program": text, **fields}


SOFTMAX = (
    "top[b, i] = max(j) s[b, i, j]\n"
    "p[b, i, j] = exp(s[b, i, j] - top[b, i])\n"
    "z[b, i] = sum(j) p[b, i, j]\n"
    "o[b, i, e] = sum(j) p[b, i, j] * v[b, j, e]\n"
    "out[b, i, e] = o[b, i, e] / z[b, i]"
)
MLP = (
    "h[m, f] = sum(k) x[m, k] * w1[f, k]\n"
    "a[m, f] = h[m, f] + b1[f]\n"
    "g[m, f] = a[m, f] * 0.5 * (1.0 + erf(a[m, f] * 0.7071067811865476))\n"
    "y[m, n] = sum(f) g[m, f] * w2[n, f]\n"
    "out[m, n] = y[m, n] + b2[n] + r[m, n]"
)
SWIGLU = (
    "h1[m, f] = sum(k) x[m, k] * w1[f, k]\n"
    "h2[m, f] = sum(k) x[m, k] * w3[f, k]\n"
    "g[m, f] = h1[m, f] * sigmoid(h1[m, f]) * h2[m, f]\n"
    "out[m, n] = sum(f) g[m, f] * w2[n, f]"
)
QUANTISED = (
    "h[m, f] = sum(k) x[m, k] * w1[f, k]\n"
    "g[m, f] = cast(min(max(round(cast(h[m, f], float32) * s[f]), -127), 127), int8)\n"
    "y[m, n] = sum(f) g[m, f] * w2[n, f]\n"
    "out[m, n] = cast(y[m, n], float32) * t[n]"
)
PRODUCTS = "a[b, i, j] = sum(d) q[b, i, d] * k[b, j, d]\n"
COLUMNS = "top[n] = max(m) x[m, n]\nout[m, n] = exp(x[m, n] - top[n])"

SAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "x86_strassen": {
        "dense": _op("dense", m="T", n=33, k=102),
        "dense-epilogue": _op("dense", epilogue=("bias", "gelu", "add"), m="T", n=72, k=160),
        "dense-two-rows": _program(
            "z[m, n] = sum(k) x[m, k] * w[n, k]\nout[m, n] = z[m, n] * c[m]", constant=["w"],
            extents={"m": "2*T", "n": 64, "k": 128},
        ),
    },
    "x86_contraction": {
        "dense": _op("dense", m="T", n=33, k=33),
        "dense-epilogue": _op("dense", epilogue=("bias", "gelu", "add"), m="T", n=50, k=19),
        "dense-thin": _op("dense", epilogue=("bias", "gelu"), m="T", n=3, k=37),
        "dense-blocks": _op("dense", epilogue=("bias",), m="T", n=40, k=128),
        "dense-thin-weights": _op("dense", {"w": "bfloat16"}, m="T", n=8, k=33),
        "matmul": _op("matmul", m="T", n=33, k=33),
        "matmul-dynamic": _op("matmul", epilogue=("relu",), m="T", n="S", k="2*S"),
        "batch_matmul_nn": _op("batch_matmul_nn", b="U", m=33, n=33, k=33),
        "batch_matmul_nt": _op("batch_matmul_nt", b="U", m="T", n=33, k="S"),
        "fixed": _op("dense", m=13, n=40, k=24),
        "dense-dynamic-weight": _op("dense", epilogue=("bias", "gelu"), m=7, n="16*T", k="U"),
        "dense-bfloat16": _op("dense", "bfloat16", ("bias", "gelu"), m="T", n=33, k=35),
        "dense-bfloat16-dynamic-weight": _op("dense", "bfloat16", ("bias",), m="U", n="T", k="S"),
        "dense-weights": _program(
            "out[m, n] = sum(k) x[m, k] * w[n, k]", extents={"m": "T", "n": 33, "k": 35}, constant=["w"],
            dtype={"w": "int8"},
        ),
        "dense-int8": _program(
            "z[m, n] = sum(k) x[m, k] * w[n, k]\nout[m, n] = cast(z[m, n], float32) * s[n]",
            extents={"m": "T", "n": 33, "k": 35}, constant=["w"], dtype={"x": "uint8", "w": "int8"},
        ),
    },
    "x86_grouped": {
        "moe_dense": _op("moe_dense", t="T", e=4, n=33, k=35),
        "moe_dense-epilogue": _op("moe_dense", epilogue=("bias", "gelu"), t="2*T", e=3, n=16, k=19),
        "bias": _program(
            "z[t, n] = sum(k) x[t, k] * w[expert[t], n, k]\nout[t, n] = max(z[t, n] + b[expert[t], n], 0)",
            extents={"t": "T", "n": 19, "k": 8}, shapes={"w": [3, "n", "k"], "b": [3, "n"]}, constant=["w"],
        ),
        "bfloat16": _program(
            "out[i, j] = sum(p) w[of[i], j, p] * x[i, p]", extents={"i": "T", "j": 21, "p": 9},
            shapes={"w": [6, "j", "p"]}, constant=["w"], dtype={"x": "bfloat16", "w": "bfloat16", "out": "bfloat16"},
        ),
    },
    "x86_chain": {
        "mlp": _program(MLP, extents={"m": "T", "k": 35, "f": 67, "n": 19}, constant=["w1", "w2"]),
        "gated": _program(SWIGLU, extents={"m": "2*T", "k": 19, "f": 150, "n": 33}, constant=["w1", "w2", "w3"]),
        "new-weights": _program(
            "h[i, j] = sum(p) u[p, j] * x[i, p]\ny[i, q] = sum(l) w[q, l] * h[i, l]\nout[i, q] = y[i, q] + x[i, q]",
            extents={"i": "T", "j": 37, "p": 21, "l": 37, "q": 21},
        ),
        "bfloat16": _program(
            MLP, extents={"m": "T", "k": 9, "f": 40, "n": 18}, constant=["w1"],
            dtype={"x": "bfloat16", "w1": "int8", "w2": "bfloat16", "out": "bfloat16"},
        ),
        "fixed": _program(SWIGLU, extents={"m": 13, "k": 8, "f": 32, "n": 16}, constant=["w1", "w2", "w3"]),
        "short": _program(
            MLP, extents={"m": "T", "k": 33, "f": 150, "n": 19}, constant=["w1", "w2"],
            dtype=dict.fromkeys(("x", "w1", "g", "w2", "out"), "bfloat16"),
        ),
        "bytes": _program(
            QUANTISED, extents={"m": "T", "k": 35, "f": 75, "n": 19}, constant=["w1", "w2"],
            dtype=dict.fromkeys(("x", "w1", "g", "w2"), "int8"),
        ),
    },
    "x86_quantized": {
        "int4": _program(
            "out[m, n] = sum(k) x[m, k] * (cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32) - 8) * scale[n]",
            extents={"m": "T", "n": 37, "k": 26}, constant=["w", "scale"], dtype={"w": "uint8"},
        ),
        "int4-groups": _program(
            "v[n, k] = cast((q[n, k // 2] >> (4 * (k % 2))) & 15, float32)\n"
            "w[n, k] = (v[n, k] - z[n, k // 16]) * s[n, k // 16]\n"
            "y[m, n] = sum(k) x[m, k] * w[n, k]\n"
            "out[m, n] = max(y[m, n] + bias[n], 0)",
            extents={"m": "T", "n": 21, "k": 45}, constant=["q", "s", "z"],
            dtype={"q": "uint8", "z": "uint8", "s": "float16", "x": "bfloat16", "out": "bfloat16"},
        ),
        "int8-groups": _program(
            "out[m, n] = sum(k) x[m, k] * w[n, k] * s[k // 8, n]",
            extents={"m": "T", "n": 19, "k": 24}, constant=["w"], dtype={"w": "int8"},
        ),
        "int4-two-scales": _program(
            "out[m, n] = sum(k) x[m, k] * s[n, k // 16] * (((w[n, k // 2] >> (4 * (k % 2))) & 15) - 8) * t[n]",
            extents={"m": "T", "n": 20, "k": 70}, constant=["w", "s"], dtype={"w": "uint8", "s": "bfloat16"},
        ),
        "int4-bytes": _program(
            "y[m, n] = sum(k) x[m, k] * (((w[n, k // 2] >> (4 * (k % 2))) & 15) - 8) * s[n, k // 64]\n"
            "out[m, n] = y[m, n] * a[m]",
            extents={"m": "T", "n": 20, "k": 192}, constant=["w", "s"], dtype={"x": "int8", "w": "uint8"},
        ),
        "int4-integers": _program(
            "y[m, n] = sum(k) x[m, k] * cast((w[n, k // 2] >> (4 * (k % 2))) & 15, int32)\n"
            "out[m, n] = cast(y[m, n], float32) * s[n]",
            extents={"m": "T", "n": 21, "k": 36}, constant=["w"], dtype={"x": "int8", "w": "uint8"},
        ),
    },
    "x86_winograd": {
        "conv2d": _op("conv2d", epilogue=("bias", "relu"), b="T", c=17, h=7, w=9, o=18, r=3, s=3, pad=1),
        "height": _op("conv2d", epilogue=("bias", "gelu", "add"), b=2, c=16, h=4, w=37, o=21, r=3, s=3),
        "wide": _op("conv2d", b="T", c=16, h=3, w=40, o=16, r=3, s=3, pad=2),
        "program": _program(
            "y[o, b, p, q] = sum(c, r, s) x[c, b, p + r - 1, q + s] * w[r, o, s, c]\n"
            "out[o, b, p, q] = max(y[o, b, p, q], z[b])",
            extents={"b": "T", "c": 16, "p": 5, "q": 3, "o": 16, "r": 3, "s": 3}, shapes={"x": ["c", "b", 5, 5]},
            constant=["w"], padded={"x": 0.5},
        ),
        "stride-2": _op("conv2d", epilogue=("bias", "relu"), b="T", c=17, h=15, w=38, o=18, r=3, s=3, stride=2, pad=1),
        "taps-across-first": _program(
            "out[b, o, p, q] = sum(c, s, r) x[b, c, p + r - 1, q + s - 1] * w[o, c, r, s]",
            extents={"b": "T", "c": 16, "p": 5, "q": 4, "o": 16, "r": 3, "s": 3}, shapes={"x": ["b", "c", 5, 4]},
            constant=["w"], padded={"x": 0},
        ),
        "kernels-outermost": _program(
            "z[o, b, p, q] = sum(c, r, s) x[b, c, p + r, q + s] * w[o, c, r, s]\n"
            "out[o, b, p, q] = max(z[o, b, p, q] + g[o], 0)",
            extents={"b": "T", "c": 16, "p": 3, "q": 35, "o": 17, "r": 3, "s": 3}, constant=["w"],
        ),
        "fewer-images": _program(
            "out[b, o, p, q] = sum(c, r, s) x[b, c, p + r - 1, q + s - 1] * w[o, c, r, s]",
            extents={"b": "T", "c": 16, "p": 4, "q": 4, "o": 16, "r": 3, "s": 3}, shapes={"x": [2, "c", 4, 4]},
            constant=["w"], padded={"x": 0},
        ),
    },
    "x86_gathered": {
        "conv2d": _op("conv2d", epilogue=("bias", "relu"), b=2, c=3, h="T", w=19, o=5, r=3, s=3, stride=2, pad=1),
        "conv2d-batch": _op("conv2d", epilogue=("bias", "gelu", "add"), b="T", c=5, h=7, w=7, o=9, r=3, s=3, pad=1),
        "conv2d-dilated": _op(
            "conv2d", epilogue=("bias", "relu"), b="T", c=5, h=9, w=13, o=7, r=3, s=2, pad=2, dilation=2
        ),
        "conv2d-nhwc": _op(
            "conv2d", epilogue=("bias", "relu"), b="T", c=18, h=7, w=9, o=21, r=3, s=2, pad=1, dilation=2, layout="nhwc"
        ),
        "conv2d-nhwc-image": _op(
            "conv2d", epilogue=("bias", "relu"), b="T", c=3, h=11, w=9, o=19, r=5, s=3, stride=2, pad=2, layout="nhwc"
        ),
        "conv2d-groups": _op("conv2d", b="T", c=4, h=7, w=9, o=34, r=2, s=3, groups=2, dilation=2),
        "conv2d-groups-nhwc": _op("conv2d", b="T", c=4, h=7, w=9, o=6, r=2, s=3, groups=2, pad=1, layout="nhwc"),
        "conv2d-1x1": _op("conv2d", b="T", c=19, h=5, w=7, o=11, r=1, s=1),
        "conv2d-1x1-residual": _op(
            "conv2d", epilogue=("bias", "add", "relu"), b=2, c=33, h="T", w=5, o=40, r=1, s=1
        ),
        "conv3d": _op("conv3d", b=2, c=2, d="T", h=4, w=5, o=3, t=2, r=2, s=2, pad=1),
        "conv2d_transpose": _op("conv2d_transpose", b=1, c=3, h="T", w=4, o=5, r=3, s=3, stride=2, pad=1),
        "conv1d_transpose-nhwc": _op(
            "conv1d_transpose", epilogue=("bias", "add"), b="T", c=5, w=6, o=19, s=4, stride=3, layout="nhwc"
        ),
        "conv2d_transpose-groups": _op("conv2d_transpose", b="T", c=4, h=3, w=4, o=6, r=2, s=1, stride=2, groups=2),
        "conv2d_transpose-dilated": _op("conv2d_transpose", b=1, c=3, h="T", w=4, o=5, r=2, s=3, stride=2, dilation=2),
        "bilinear": _op("bilinear", epilogue=("bias",), b="T", o=19, i=7, j=18),
        "bilinear-dynamic": _program(
            "y[b, o] = sum(i, j) u[b, i] * w[o, i, j] * v[b, j]", extents=dict.fromkeys("boij", "T")
        ),
        "capsules": _program(
            "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
            extents={"b": "T", "k": 3, "p": 2, "q": 2, "i": 4, "j": 4, "h": 2, "r": 3, "s": 3, "m": 4}, constant=["w"],
        ),
        "several-axes": _program(
            "out[a, b, c, d] = sum(k, l) x[a, k, b, l] * y[k, c, l, d]",
            extents={"a": "T", "b": 3, "c": 5, "d": 9, "k": 4, "l": "T"},
        ),
        "scattered": _program(
            "z[a, b, c, d] = sum(k) x[a, c, k] * y[b, k, d]\nout[a, b, c, d] = max(z[a, b, c, d] + s[c, b] * a, t[d])",
            extents={"a": "T", "b": 3, "c": 5, "d": 3, "k": 9},
        ),
        "transposed": _program("out[m, n] = sum(k) x[k, m] * y[n, k]", extents={"m": "T", "n": 35, "k": 18}),
        "products": _program(
            "out[m, n] = sum(k) x[m, k] * exp(y[k, n]) * s[k] * t[m] * u[n]", extents={"m": 7, "n": "T", "k": 21}
        ),
        "conv2d-bfloat16": _op(
            "conv2d", "bfloat16", ("bias", "relu"), b=2, c=3, h="T", w=19, o=5, r=3, s=3, stride=2, pad=1
        ),
        "conv2d-nhwc-float16": _op(
            "conv2d", "float16", ("bias", "gelu"), b="T", c=5, h=7, w=6, o=21, r=3, s=2, pad=1, layout="nhwc"
        ),
        "conv2d-bytes": _op("conv2d", {"weight": "int8"}, b="T", c=3, h=5, w=7, o=11, r=2, s=2),
        "scattered-bfloat16": _program(
            "z[a, b, c, d] = sum(k) x[a, c, k] * y[b, k, d]\nout[a, b, c, d] = max(z[a, b, c, d] + s[c, b] * a, t[d])",
            extents={"a": "T", "b": 3, "c": 5, "d": 3, "k": 9}, dtype="bfloat16",
        ),
        "conv2d-nhwc-words": _op(
            "conv2d", "bfloat16", ("bias",), b="T", c=8, h=5, w=6, o=21, r=3, s=2, pad=1, layout="nhwc"
        ),
        "conv2d-int8": _program(
            "z[b, o, p, q] = sum(c, r, s) x[b, c, p + r - 1, q + s - 1] * w[o, c, r, s]\n"
            "out[b, o, p, q] = cast(z[b, o, p, q], float32) * scale[o]",
            extents={"b": "T", "o": 5, "p": 6, "q": 7, "c": 4, "r": 3, "s": 3}, constant=["w"], padded={"x": 1},
            shapes={"x": ["b", "c", 6, 7]}, dtype={"x": "int8", "w": "int8"},
        ),
        "conv2d-nhwc-uint8": _program(
            "z[b, p, q, o] = sum(r, s, c) x[b, 2*p + r, 2*q + s, c] * w[r, s, c, o]\n"
            "out[b, p, q, o] = cast(min(max(round(cast(z[b, p, q, o], float32) * scale[o]), 0), 255), uint8)",
            extents={"b": "T", "o": 19, "p": 3, "q": 4, "c": 7, "r": 3, "s": 2}, constant=["w"],
            dtype={"x": "uint8", "w": "int8", "out": "uint8"},
        ),
        "several-axes-bytes": _program(
            "out[a, b, c, d] = sum(k, l) x[a, k, b, l] * y[k, c, l, d]",
            extents={"a": "T", "b": 3, "c": 5, "d": 9, "k": 4, "l": "T"},
            dtype={"x": "uint8", "y": "uint8", "out": "int32"},
        ),
        "fixed": _op("conv1d", b=3, c=7, w=40, o=9, s=3, stride=3),
    },
    "attention": {
        "plain": _op("attention", b="U", h=2, i="T", j="T", d=24),
        "causal": _op("attention", b=1, h=2, i="T", j="S", d=40, causal=True),
        "decode": _op("attention", b=2, h=3, i=1, j="S", d=33),
        "segments": _program(
            f"{PRODUCTS}s[b, i, j] = where(seg[b, i] == seg[b, j], a[b, i, j] * 0.3 + bias[i, j], -inf)\n{SOFTMAX}",
            extents={"b": 2, "i": "T", "j": "T", "d": 8, "e": 19}, dtype={"seg": "int32"},
        ),
        "window": _program(
            f"{PRODUCTS}s[b, i, j] = where((j <= i) & (j > i - 7), tanh(a[b, i, j]) * 5, -inf)\n{SOFTMAX}",
            extents={"b": 2, "i": "T", "j": "T", "d": 8, "e": 16},
        ),
        "lengths": _program(
            f"{PRODUCTS}s[b, i, j] = where(j < n[b], a[b, i, j], -inf)\n{SOFTMAX} * g[b, i, e] + h[e]",
            extents={"b": "U", "i": 5, "j": "S", "d": 8, "e": 16}, dtype={"n": "int32"},
        ),
        "grouped": _program(
            "a[b, h, i, j] = sum(d) q[b, i, h, d] * k[b, h // 3, d, j]\n"
            "top[b, h, i] = max(j) a[b, h, i, j]\n"
            "p[b, h, i, j] = exp(a[b, h, i, j] - top[b, h, i])\n"
            "z[b, h, x] = sum(y) p[b, h, x, y]\n"
            "w[b, h, i, j] = p[b, h, i, j] / z[b, h, i]\n"
            "out[b, i, h, e] = sum(j) v[b, j, h // 3, e] * w[b, h, i, j]",
            extents={"b": "U", "h": 6, "i": "T", "j": "S", "d": 8, "e": "2*T", "x": "T", "y": "S"},
            shapes={"k": ["b", 2, "d", "j"], "v": ["b", "j", 2, "e"]},
        ),
        "bfloat16": _op("attention", "bfloat16", b=1, h=2, i="T", j="S", d=24, causal=True),
        "float16": _program(
            f"{PRODUCTS}s[b, i, j] = a[b, i, j] * 0.3 + bias[i, j]\n{SOFTMAX} * g[b, i, e]",
            extents={"b": "U", "i": "T", "j": "S", "d": 9, "e": 19}, dtype="float16",
        ),
        "fixed": _op("attention", b=1, h=1, i=13, j=32, d=16, causal=True, scale=2.0),
    },
    "injective": {
        "chain": _program(
            "y[m, n] = tanh(x[m, n]) * s[n]\nout[m, n] = max(y[m, n], 0) + r[m, n]", extents={"m": "T", "n": 37}
        ),
        "turned": _program(
            "out[n, b, m] = x[m, n, b] * s[m] + exp(y[b, m, n - 1])", extents={"b": 2, "m": "T", "n": "S"},
            shapes={"y": ["b", "m", "n"]}, padded={"y": 0.5},
        ),
        "turned-half": _program("out[n, m] = x[m, n] + n", extents={"m": "T", "n": 37}, dtype="float16"),
        "turned-float64": _program("out[n, m] = x[m, n] * 2", extents={"m": 21, "n": "T"}, dtype="float64"),
        "transpose": _program("out[n, m] = x[m, n]", extents={"m": "T", "n": "S"}),
        "cast": _program(
            "out[m, n] = cast(x[m, n], int8)", extents={"m": "T", "n": 21}, dtype={"x": "float32", "out": "int8"}
        ),
        "half": _program("out[m, n] = x[m, n] * sigmoid(x[m, n])", extents={"m": "T", "n": 37}, dtype="float16"),
        "bfloat16": _program("out[m] = x[m] + y[m]", extents={"m": "T"}, dtype="bfloat16"),
        "gather": _program(
            "out[t, n] = table[ids[t], n]", extents={"t": "T", "n": 19}, shapes={"table": [11, "n"]},
            dtype={"ids": "int32"},
        ),
        "padded": _program(
            "out[m, n] = x[m - 2, n - 1]", extents={"m": "T", "n": 23}, shapes={"x": ["m", 21]}, padded={"x": 1.5}
        ),
        "several": _program("a[m] = x[m] * 2\nb[m] = x[m] - y[m]", extents={"m": "T"}),
        "fixed": _program("out[i, j] = x[i, j] + i - 2 * j", extents={"i": 7, "j": 13}),
    },
    "row_reduction": {
        "short-integers": _program(
            "t[m] = max(n) x[m, n]\nout[m, n] = cast(x[m, n] - t[m], int16)",
            extents={"m": "T", "n": 17}, dtype={"x": "int32", "out": "int16"},
        ),
        "softmax": _op("softmax", m="T", n=33),
        "softmax-half": _op("softmax", "float16", m="T", n=21),
        "softmax-bfloat16": _op("softmax", "bfloat16", m="T", n=21),
        "softmax-float64": _op("softmax", "float64", m="T", n="S"),
        "layer_norm": _op("layer_norm", m="T", n="S"),
        "rms_norm": _op("rms_norm", epilogue=("gelu",), m="T", n=37),
        "reduce_max": _op("reduce_max", m="T", n=37),
        "reduce_mean": _op("reduce_mean", m="T", n="S"),
        "reduce_sum-int8": _op("reduce_sum", {"x": "int8", "out": "int32"}, m="T", n=37),
        "gemv": _op("gemv", n="T", k="S"),
        "moe_dense": _op("moe_dense", t="T", e=4, n=9, k=17),
        "ragged": _program(
            "top[i] = max(j) where(seg[i] == seg[j], d[i, j], -inf)\n"
            "out[i, j] = where(seg[i] == seg[j], exp(d[i, j] - top[i]), 0)",
            extents={"i": "T", "j": "T"}, dtype={"seg": "int32"},
        ),
        "several": _program("low[m] = min(n) x[m, n]\ntotal[m] = sum(n) x[m, n]", extents={"m": "T", "n": "S"}),
        "kept": _program(
            "a[m, n] = tanh(x[m, n])\ns[m] = sum(n) a[m, n]\nout[m, n] = a[m, n] / s[m]", extents={"m": "T", "n": 21},
            dtype={"out": "float16"}, domain={"x": [0.5, 2]},
        ),
        "groups": _program(
            "s[b, g] = sum(c, p) x[b, g, c, p] * x[b, g, c, p]\nout[b, g, c, p] = x[b, g, c, p] * w[g, c] - s[b, g]",
            extents={"b": "T", "g": 3, "c": 4, "p": 19},
        ),
        "point": _program("out[] = sum(m) x[m] * y[m]", extents={"m": "T"}),
        "fixed": _program("out[i] = prod(j) x[i, j]", extents={"i": 5, "j": 9}),
    },
    "windows": {
        "max_pool2d": _op("max_pool2d", b="T", c=3, h=8, w=9, r=3, s=3, stride=2, pad=1),
        "avg_pool2d": _op("avg_pool2d", b=1, c="T", h=9, w="2*S+3", r=3, s=2, stride=2),
        "depthwise_conv2d": _op(
            "depthwise_conv2d", epilogue=("bias", "relu"), b="T", c=3, h=9, w=37, r=3, s=3, pad=1
        ),
        "depthwise-half": _op("depthwise_conv2d", "float16", ("add",), b=1, c="T", h=5, w=19, r=3, s=3, stride=3),
        "depthwise-bfloat16": _op("depthwise_conv2d", "bfloat16", b=1, c="T", h=5, w=19, r=3, s=3, pad=1),
        "depthwise-int8": _op(
            "depthwise_conv2d", {"x": "int8", "weight": "int8", "out": "int32"}, b="T", c=2, h=4, w=18, r=2, s=3, pad=1
        ),
        "grouped": _op("conv2d", epilogue=("bias",), b="T", c=4, h=7, w=9, o=8, r=3, s=3, groups=4, dilation=2, pad=2),
        "channels-last": _program(
            "out[b, p, q, c] = sum(r, s) x[b, 2*p + r - 1, 2*q + s - 1, c] * w[r, s, c]",
            extents={"b": "T", "p": 3, "q": 5, "c": "S", "r": 3, "s": 3}, shapes={"x": ["b", 6, 10, "c"]},
            padded={"x": 0}, constant=["w"],
        ),
        "volume": _program(
            "out[c, z, p, q] = max(t, r, s) x[c, z + t - 1, 2*p + r, 2*q + s]",
            extents={"c": "T", "z": 3, "p": 4, "q": 9, "t": 3, "r": 2, "s": 2}, shapes={"x": ["c", 3, 8, 18]},
            padded={"x": float("-inf")},
        ),
        "line": _program(
            "s[b, q] = sum(k) x[b, q + 2*k] * w[k]\nout[b, q] = s[b, q] * y[q] + q",
            extents={"b": "T", "q": "S", "k": 5}, shapes={"x": ["b", "S + 8"]}, outputs=["s", "out"],
        ),
        "squares-float64": _program(
            "out[p, q] = sum(r, s) x[p + r, q + s] * x[p + r, q + s]",
            extents={"p": "T", "q": "S", "r": 2, "s": 2}, shapes={"x": ["T + 1", "S + 1"]}, dtype="float64",
        ),
    },
    "column_reduction": {
        "columns": _program("out[n] = max(m) x[m, n]", extents={"m": "T", "n": 37}),
        "columns-half": _program("out[n] = sum(m) x[m, n]", extents={"m": "T", "n": 21}, dtype="float16"),
        "columns-int8": _program(
            "out[n] = sum(m) x[m, n]", extents={"m": "T", "n": "S"}, dtype={"x": "int8", "out": "int32"}
        ),
        "middle": _program(
            "s[b, n] = sum(m) x[b, m, n]\nout[b, n] = s[b, n] / extent(m) + y[n]",
            extents={"b": "U", "m": "T", "n": "S"},
        ),
        "from-the-left": _program("y[n] = sum(k) x[k] * w[k, n]", extents={"k": "T", "n": "S"}),
        "looked-up": _program(
            "out[n] = sum(t) table[ids[t], n] * s[t]", extents={"t": "T", "n": 19}, shapes={"table": [11, "n"]},
            dtype={"ids": "int32"},
        ),
        "several-float64": _program(
            "out[n] = min(b, m) x[b, m, n]", extents={"b": "U", "m": 3, "n": 9}, dtype="float64"
        ),
        "fixed": _program("out[j] = prod(i) x[i, j]", extents={"i": 5, "j": 9}),
    },
    "fallback": {
        "dense-int8": _op("dense", {"x": "int8", "w": "int8", "out": "int32"}, m="T", n=19, k=23),
        "dense-bfloat16": _op("dense", "bfloat16", ("bias",), m="T", n=19, k=23),
        "dense-float64": _op("dense", "float64", m="T", n=11, k=13),
        "conv2d": _op("conv2d", epilogue=("bias", "relu"), b=2, c=3, h="T", w=9, o=5, r=3, s=3, stride=2, pad=1),
        "conv2d-groups": _op("conv2d", b="T", c=4, h=7, w=9, o=6, r=2, s=3, groups=2, dilation=2, layout="nhwc"),
        "conv2d_transpose": _op("conv2d_transpose", b=1, c=3, h="T", w=4, o=5, r=3, s=3, stride=2, pad=1),
        "pooled-far": _op("max_pool2d", b="T", c=2, h=11, w=33, r=2, s=2, stride=7),
        "attention": _op("attention", b=1, h=2, i="T", j="S", d=8, causal=True),
        "capsules": _program(
            "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
            extents={"b": "T", "k": 3, "p": 2, "q": 2, "i": 4, "j": 4, "h": 2, "r": 3, "s": 3, "m": 4}, constant=["w"],
        ),
        "int4": _program(
            "out[m, n] = sum(k) x[m, k] * (cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32) - 8) * scale[n]",
            extents={"m": "T", "n": 9, "k": 26}, constant=["w", "scale"], dtype={"w": "uint8"},
        ),
        "convolution": _program("out[i] = sum(k) x[i + k] * w[k]", extents={"i": "T", "k": "S"}),
        "columns": _program("out[n] = max(m) x[m, n]", extents={"m": "T", "n": 37}),
        "columns-half": _program(COLUMNS, extents={"m": "T", "n": 21}, dtype="float16"),
        "columns-bfloat16": _program(COLUMNS, extents={"m": "T", "n": "S"}, dtype="bfloat16"),
        "fixed": _program("out[j] = prod(i) x[i, j]", extents={"i": 5, "j": 9}),
    },
}  # fmt: skip

CUT_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "convolutions": _program(
        "a[b, o, y, x] = sum(c, r, s) i[b, c, y + r, x + s] * w[o, c, r, s]\n"
        "h[b, o, y, x] = max(a[b, o, y, x], 0)\n"
        "out[b, q, y, x] = sum(o) h[b, o, y, x] * v[q, o]",
        extents={"b": "T", "o": 18, "y": 5, "x": 7, "c": 16, "r": 3, "s": 3, "q": 9}, constant=["w", "v"],
    ),
    "padded-convolutions": _program(
        "h[b, o, y, x] = sum(c, r, s) i[b, c, y + r - 1, x + s - 1] * w[o, c, r, s]\n"
        "out[b, q, y, x] = sum(o, u, t) h[b, o, y + u - 1, x + t - 1] * v[q, o, u, t]",
        extents={"b": "T", "o": 17, "y": 5, "x": 6, "c": 3, "r": 3, "s": 3, "q": 7, "u": 3, "t": 3},
        padded={"i": 0, "h": 0}, shapes={"i": ["T", 3, 5, 6]}, constant=["w", "v"],
    ),
    "products": _program(
        "a[m, f] = sum(k) x[m, k] * w1[f, k]\n"
        "b[m, g] = sum(f) a[m, f] * w2[g, f]\n"
        "out[m, n] = sum(g) b[m, g] * w3[n, g]",
        extents={"m": "T", "f": 19, "k": 33, "g": 7, "n": 21}, constant=["w1", "w2", "w3"],
    ),
    "products-bfloat16": _program(
        "a[b, m, f] = sum(k) x[b, m, k] * y[b, k, f]\nout[b, m, n] = sum(f) a[b, m, f] * z[b, f, n]",
        extents={"b": 2, "m": "T", "f": 34, "k": 32, "n": 20}, dtype="bfloat16",
    ),
    "centred": _program(
        "s[m] = sum(k) x[m, k]\nc[m, k] = x[m, k] - s[m] / extent(k)\nout[m, n] = sum(k) c[m, k] * w[n, k]",
        extents={"m": "T", "k": 37, "n": 19}, constant=["w"],
    ),
    "softmax": _program(
        "a[m, n] = sum(k) x[m, k] * w[n, k]\ntop[m] = max(n) a[m, n]\ne[m, n] = exp(a[m, n] - top[m])\n"
        "z[m] = sum(n) e[m, n]\nout[m, n] = e[m, n] / z[m]",
        extents={"m": "T", "n": "S", "k": 18},
    ),
    "two-outputs": _program(
        "a[m, f] = sum(k) x[m, k] * y[f, k]\ntop[m] = max(f) a[m, f]\nout[m, n] = sum(f) a[m, f] * z[f, n]",
        extents={"m": 9, "f": "T", "k": 17, "n": 12}, outputs=["a", "top", "out"],
    ),
}  # fmt: skip
"""Programs that no rule takes whole, and several in pieces."""


@cache
def _workload(sample: str) -> Workload:
    """Of each sample there are tasks for several targets."""
    return workload_from_json(json.loads(sample))


def sample_task(sample: Mapping[str, Any], target: Target, threads: int, values: range = RANGE) -> SearchTask:
    """A search of a sample whose shape variables all run over ``values``, by default RANGE."""
    workload = _workload(json.dumps(sample))
    variables = tuple(ShapeVar(name, values) for name in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=target, threads=threads)
