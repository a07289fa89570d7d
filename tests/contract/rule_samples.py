"""Workloads of a job file that each rule takes, by the rule's name: the contract suite runs over them all.

Shape variables T, S and U run over RANGE. A rule's own samples show what it is for: every kind of axis, operand and
element type that its pattern admits, each as small as it can be and still have ragged ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.program.build import workload_from_json
from tuner.program.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.program.task import SearchTask

RANGE = range(1, 65)


def _op(name: str, dtype: object = "float32", epilogue: tuple[str, ...] = (), **args: Any) -> dict[str, Any]:
    return {"op": name, "args": args, "dtype": dtype, "epilogue": list(epilogue)}


def _program(text: str, **fields: Any) -> dict[str, Any]:
    return {"program": text, **fields}


SAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "x86_contraction": {
        "dense": _op("dense", m="T", n=33, k=33),
        "dense-epilogue": _op("dense", epilogue=("bias", "gelu", "add"), m="T", n=50, k=19),
        "matmul": _op("matmul", m="T", n=33, k=33),
        "matmul-dynamic": _op("matmul", epilogue=("relu",), m="T", n="S", k="2*S"),
        "batch_matmul_nn": _op("batch_matmul_nn", b="U", m=33, n=33, k=33),
        "batch_matmul_nt": _op("batch_matmul_nt", b="U", m="T", n=33, k="S"),
        "fixed": _op("dense", m=13, n=40, k=24),
    },
    "injective": {
        "chain": _program(
            "y[m, n] = tanh(x[m, n]) * s[n]\nout[m, n] = max(y[m, n], 0) + r[m, n]", extents={"m": "T", "n": 37}
        ),
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
        "softmax": _op("softmax", m="T", n=33),
        "softmax-dynamic": _op("softmax", m="T", n="S"),
        "softmax-half": _op("softmax", "float16", m="T", n=41),
        "softmax-bfloat16": _op("softmax", "bfloat16", m="T", n="S"),
        "layer_norm": _op("layer_norm", m="T", n="S"),
        "rms_norm": _op("rms_norm", m="T", n=50),
        "rms_norm-bfloat16": _op("rms_norm", "bfloat16", m="T", n=50),
        "reduce_sum": _op("reduce_sum", epilogue=("relu",), m="T", n=37),
        "reduce_max": _op("reduce_max", m="T", n="S"),
        "reduce_mean": _op("reduce_mean", m="T", n="S"),
        "gemv": _op("gemv", n="T", k="S"),
        "batched": _program(
            "top[b, i] = max(j) x[b, i, j]\ne[b, i, j] = exp(x[b, i, j] - top[b, i])\nz[b, i] = sum(j) e[b, i, j]",
            extents={"b": "U", "i": 3, "j": "S"}, outputs=["e", "z"],
        ),
        "several": _program("low[m] = min(n) x[m, n]\ntotal[m] = sum(n) x[m, n]", extents={"m": "T", "n": "S"}),
        "fixed": _op("softmax", m=5, n=19),
    },
    "fallback": {
        "softmax": _op("softmax", m="T", n=33),
        "softmax-half": _op("softmax", "float16", m="T", n=21),
        "softmax-bfloat16": _op("softmax", "bfloat16", m="T", n=21),
        "layer_norm": _op("layer_norm", m="T", n="S"),
        "reduce_max": _op("reduce_max", m="T", n=37),
        "gemv": _op("gemv", n="T", k="S"),
        "dense-int8": _op("dense", {"x": "int8", "w": "int8", "out": "int32"}, m="T", n=19, k=23),
        "dense-bfloat16": _op("dense", "bfloat16", ("bias",), m="T", n=19, k=23),
        "dense-float64": _op("dense", "float64", m="T", n=11, k=13),
        "conv2d": _op("conv2d", epilogue=("bias", "relu"), b=2, c=3, h="T", w=9, o=5, r=3, s=3, stride=2, pad=1),
        "conv2d-groups": _op("conv2d", b="T", c=4, h=7, w=9, o=6, r=2, s=3, groups=2, dilation=2, layout="nhwc"),
        "conv2d_transpose": _op("conv2d_transpose", b=1, c=3, h="T", w=4, o=5, r=3, s=3, stride=2, pad=1),
        "max_pool2d": _op("max_pool2d", b="T", c=3, h=8, w=9, r=3, s=3, stride=2, pad=1),
        "moe_dense": _op("moe_dense", t="T", e=4, n=9, k=17),
        "attention": _op("attention", b=1, h=2, i="T", j="S", d=8, causal=True),
        "capsules": _program(
            "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
            extents={"b": "T", "k": 3, "p": 2, "q": 2, "i": 4, "j": 4, "h": 2, "r": 3, "s": 3, "m": 4}, constant=["w"],
        ),
        "int4": _program(
            "out[m, n] = sum(k) x[m, k] * (cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32) - 8) * scale[n]",
            extents={"m": "T", "n": 9, "k": 26}, constant=["w", "scale"], dtype={"w": "uint8"},
        ),
        "ragged": _program(
            "top[i] = max(j) where(seg[i] == seg[j], d[i, j], -inf)\n"
            "out[i, j] = where(seg[i] == seg[j], exp(d[i, j] - top[i]), 0)",
            extents={"i": "T", "j": "T"}, dtype={"seg": "int32"},
        ),
        "several": _program("low[m] = min(n) x[m, n]\ntotal[m] = sum(n) x[m, n]", extents={"m": "T", "n": "S"}),
        "point": _program("out[] = sum(m) x[m] * y[m]", extents={"m": "T"}),
        "convolution": _program("out[i] = sum(k) x[i + k] * w[k]", extents={"i": "T", "k": "S"}),
        "fixed": _program("out[i] = prod(j) x[i, j]", extents={"i": 5, "j": 9}),
    },
}  # fmt: skip


def sample_task(sample: Mapping[str, Any], target: Target, threads: int, values: range = RANGE) -> SearchTask:
    """A search of a sample whose shape variables all run over ``values``, by default RANGE."""
    workload = workload_from_json(sample)
    variables = tuple(ShapeVar(name, values) for name in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=target, threads=threads)
