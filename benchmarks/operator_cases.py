"""What the benchmark of operators tunes: operators of the catalogue, and chains of elementwise ones, with sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite import Benchmark
from tuner.errors import InvalidInput
from tuner.program.build import workload_from_json
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, Workload

LARGEST = 128
TUNED = (5, 24, 43, 62, 81, 100, 119, 128)
TIMED = (1, 2, 5, 11, 24, 37, 43, 53, 62, 64, 81, 97, 100, 119, 127, 128)
"""Values of T; half of those that are timed are not tuned for."""

CHAINS: Mapping[str, str] = {
    "swiglu": "out[m, n] = x[m, n] * sigmoid(x[m, n]) * y[m, n]",
    "gelu_residual": "out[m, n] = x[m, n] * 0.5 * (1.0 + erf(x[m, n] * 0.7071067811865476)) + y[m, n]",
    "column_sum": "out[n] = sum(m) x[m, n]",
    "vector_matrix": "y[n] = sum(k) x[k] * w[k, n]",
    "transpose": "out[a, c, b] = x[a, b, c]",
    "depthwise_nhwc": "out[b, p, q, c] = sum(r, s) x[b, p + r - 1, q + s - 1, c] * w[r, s, c]",
    "dense_bfloat16": "out[m, n] = sum(k) x[m, k] * w[n, k]",
    "dense_int8": "z[m, n] = sum(k) x[m, k] * w[n, k]; out[m, n] = cast(z[m, n], float32) * s[n]",
}
"""Programs of one's own, by the names that the benchmark gives them."""
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "depthwise_nhwc": {"padded": {"x": 0}, "constant": ["w"]},
    "dense_bfloat16": {"dtype": "bfloat16", "constant": ["w"]},
    "dense_int8": {"dtype": {"x": "uint8", "w": "int8"}, "constant": ["w"]},
}
"""What else is said of a program."""
DEFAULT = ("softmax", "layer_norm", "rms_norm", "reduce_sum", "swiglu", "gelu_residual")

ROWS: Sequence[Mapping[str, Any]] = ({"m": "T", "n": 768}, {"m": "8*T", "n": 4096})
WEIGHTS: Sequence[Mapping[str, Any]] = ({"m": "2*T", "n": 3072, "k": 768}, {"m": "2*T", "n": 4096, "k": 4096})
_IMAGE = {"b": "T", "c": 32, "h": 14, "w": 14}
_PLANE = {"b": 1, "r": 3, "s": 3, "pad": 1}
"""Of one image whose channels are as many as in the layers of a network: 8 to 1024."""
_LAST = {"b": 1, "c": "8*T", "r": 3, "s": 3}
_CONV = {**_IMAGE, "o": 32, "r": 3, "s": 3}

SIZES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "dense": [{"m": "16*T", "n": 768, "k": 768}],
    "matmul": [{"m": "T", "n": 768, "k": 768}],
    "batch_matmul_nn": [{"b": 12, "m": "T", "n": 64, "k": "T"}],
    "batch_matmul_nt": [{"b": 12, "m": "T", "n": "T", "k": 64}],
    "gemv": [{"n": "16*T", "k": 768}, {"n": "32*T", "k": 4096}],
    "bilinear": [{"b": "T", "o": 32, "i": 64, "j": 64}],
    "conv1d": [{"b": "T", "c": 32, "w": 128, "o": 32, "s": 3, "pad": 1}],
    "conv2d": [{**_CONV, "pad": 1}],
    "conv3d": [{"b": "T", "c": 16, "d": 4, "h": 8, "w": 8, "o": 16, "t": 3, "r": 3, "s": 3, "pad": 1}],
    "conv1d_transpose": [{"b": "T", "c": 32, "w": 64, "o": 32, "s": 3, "stride": 2}],
    "conv2d_transpose": [{**_CONV, "stride": 2}],
    "conv3d_transpose": [{"b": "T", "c": 8, "d": 4, "h": 6, "w": 6, "o": 8, "t": 3, "r": 3, "s": 3, "stride": 2}],
    "group_conv2d": [{**_CONV, "pad": 1, "groups": 4}],
    "dilated_conv2d": [{**_CONV, "pad": 2, "dilation": 2}],
    "depthwise_conv2d": [
        {**_IMAGE, "r": 3, "s": 3, "pad": 1},
        {**_PLANE, "c": "T", "h": 112, "w": 112, "stride": 2},
        {**_PLANE, "c": "2*T", "h": 56, "w": 56},
        {**_PLANE, "c": "4*T", "h": 28, "w": 28, "stride": 2},
        {**_PLANE, "c": "8*T", "h": 14, "w": 14},
        {**_PLANE, "c": "8*T", "h": 7, "w": 7},
    ],
    "max_pool2d": [{**_IMAGE, "r": 2, "s": 2, "stride": 2}, {**_PLANE, "c": "T", "h": 112, "w": 112, "stride": 2}],
    "avg_pool2d": [{**_IMAGE, "r": 2, "s": 2, "stride": 2}, {**_PLANE, "c": "8*T", "h": 28, "w": 28}],
    "depthwise_nhwc": [{**_LAST, "p": 28, "q": 28}, {**_LAST, "p": 7, "q": 7}],
    "column_sum": [{"m": "8*T", "n": 768}, {"m": "16*T", "n": 4096}],
    "vector_matrix": [{"k": "16*T", "n": 4096}],
    **dict.fromkeys(("dense_bfloat16", "dense_int8"), WEIGHTS),
    "transpose": [{"a": 8, "b": "T", "c": 768}, {"a": 1, "b": "8*T", "c": "8*T"}],
    "attention": [
        {"b": batch, "h": 12, "i": length, "j": length, "d": 64, **causal}
        for batch, length in ((1, "4*T"), (16, "T"))
        for causal in ({}, {"causal": True})
    ],
    "moe_dense": [{"t": "4*T", "e": 8, "n": 256, "k": 256}],
    **dict.fromkeys(("softmax", "layer_norm", "rms_norm", "reduce_sum", "reduce_max", "reduce_mean"), ROWS),
    **dict.fromkeys(("swiglu", "gelu_residual"), ROWS),
}
"""Sizes over T of every operator of the catalogue, and of the chains."""


def _layer(c: int, size: int, o: int, window: int = 1, stride: int = 1) -> Mapping[str, Any]:
    """A convolution of a batch of T images of ``size`` by ``size``, padded so that stride alone makes them smaller."""
    images = {"b": "T", "c": c, "h": size, "w": size, "o": o, "r": window, "s": window}
    return {**images, "stride": stride, "pad": window // 2}


RESNET50: Mapping[str, Mapping[str, Any]] = {
    "conv1": _layer(3, 224, 64, 7, 2),
    "conv2_reduce_first": _layer(64, 56, 64), "conv2_3x3": _layer(64, 56, 64, 3), "conv2_expand": _layer(64, 56, 256),
    "conv2_reduce": _layer(256, 56, 64),
    "conv3_reduce_first": _layer(256, 56, 128), "conv3_3x3_first": _layer(128, 56, 128, 3, 2),
    "conv3_expand": _layer(128, 28, 512), "conv3_shortcut": _layer(256, 56, 512, 1, 2),
    "conv3_reduce": _layer(512, 28, 128), "conv3_3x3": _layer(128, 28, 128, 3),
    "conv4_reduce_first": _layer(512, 28, 256), "conv4_3x3_first": _layer(256, 28, 256, 3, 2),
    "conv4_expand": _layer(256, 14, 1024), "conv4_shortcut": _layer(512, 28, 1024, 1, 2),
    "conv4_reduce": _layer(1024, 14, 256), "conv4_3x3": _layer(256, 14, 256, 3),
    "conv5_reduce_first": _layer(1024, 14, 512), "conv5_3x3_first": _layer(512, 14, 512, 3, 2),
    "conv5_expand": _layer(512, 7, 2048), "conv5_shortcut": _layer(1024, 14, 2048, 1, 2),
    "conv5_reduce": _layer(2048, 7, 512), "conv5_3x3": _layer(512, 7, 512, 3),
}  # fmt: skip
"""The distinct convolutions of ResNet-50 (He et al. 2016; stride in the 3x3 windows, as torchvision has it)."""
IMAGES_TUNED = (1, 4, 8, 16)
IMAGES_TIMED = (1, 2, 3, 4, 6, 8, 12, 16)
"""Batches of images; half of those that are timed are not tuned for."""


def benchmarks_of(name: str, target: Target, threads: int, timed: Sequence[int] = TIMED) -> list[Benchmark]:
    """A benchmark for each size of an operator or a chain, timed at these values of T; ``resnet50`` and its layers are
    timed at batches of images.

    Raises InvalidInput for a name that is none of these.
    """
    if name == "resnet50" or name in RESNET50:
        chosen = RESNET50 if name == "resnet50" else {name: RESNET50[name]}
        batches = tuple(value for value in timed if value <= IMAGES_TUNED[-1]) if timed != TIMED else IMAGES_TIMED
        return [_resnet(layer, sizes, target, threads, batches) for layer, sizes in chosen.items()]
    if name not in SIZES:
        known = f"one of: {', '.join(sorted({*SIZES, 'resnet50', *RESNET50}))}"
        raise InvalidInput("op", f"{name!r} is neither an operator nor a chain", known)
    return [_benchmark(name, sizes, target, threads, timed) for sizes in SIZES[name]]


def _resnet(name: str, sizes: Mapping[str, Any], target: Target, threads: int, timed: Sequence[int]) -> Benchmark:
    variable = ShapeVar("T", range(1, IMAGES_TUNED[-1] + 1))
    workload = workload_from_json({"op": "conv2d", "args": sizes})
    task = SearchTask(workload, shape_vars=(variable,), instances=IMAGES_TUNED, target=target, threads=threads)
    return Benchmark(name, task, tuple({"T": value} for value in timed))


def _benchmark(name: str, sizes: Mapping[str, Any], target: Target, threads: int, timed: Sequence[int]) -> Benchmark:
    data: dict[str, Any] = {"op": name, "args": sizes}
    if name in CHAINS:
        data = {"program": CHAINS[name], "extents": sizes, **FIELDS.get(name, {})}
    if name == "depthwise_nhwc":
        data |= {"shapes": {"x": ["b", sizes["p"], sizes["q"], "c"]}}
    workload: Workload = workload_from_json(data)
    variable = ShapeVar("T", range(1, LARGEST + 1))
    task = SearchTask(workload, shape_vars=(variable,), instances=TUNED, target=target, threads=threads)
    shape = ", ".join(key if value is True else str(value) for key, value in sizes.items())
    return Benchmark(
        f"{name} [{shape}]" if len(SIZES[name]) > 1 else name, task, tuple({"T": value} for value in timed)
    )
