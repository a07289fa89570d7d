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
}
"""Programs of one's own, by the names that the benchmark gives them."""
DEFAULT = ("softmax", "layer_norm", "rms_norm", "reduce_sum", *CHAINS)

ROWS: Sequence[Mapping[str, Any]] = ({"m": "T", "n": 768}, {"m": "8*T", "n": 4096})
_IMAGE = {"b": "T", "c": 32, "h": 14, "w": 14}
_CONV = {**_IMAGE, "o": 32, "r": 3, "s": 3}

SIZES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "dense": [{"m": "16*T", "n": 768, "k": 768}],
    "matmul": [{"m": "T", "n": 768, "k": 768}],
    "batch_matmul_nn": [{"b": 12, "m": "T", "n": 64, "k": "T"}],
    "batch_matmul_nt": [{"b": 12, "m": "T", "n": "T", "k": 64}],
    "gemv": [{"n": "16*T", "k": 768}],
    "bilinear": [{"b": "T", "o": 32, "i": 64, "j": 64}],
    "conv1d": [{"b": "T", "c": 32, "w": 128, "o": 32, "s": 3, "pad": 1}],
    "conv2d": [{**_CONV, "pad": 1}],
    "conv3d": [{"b": "T", "c": 16, "d": 4, "h": 8, "w": 8, "o": 16, "t": 3, "r": 3, "s": 3, "pad": 1}],
    "conv1d_transpose": [{"b": "T", "c": 32, "w": 64, "o": 32, "s": 3, "stride": 2}],
    "conv2d_transpose": [{**_CONV, "stride": 2}],
    "conv3d_transpose": [{"b": "T", "c": 8, "d": 4, "h": 6, "w": 6, "o": 8, "t": 3, "r": 3, "s": 3, "stride": 2}],
    "group_conv2d": [{**_CONV, "pad": 1, "groups": 4}],
    "dilated_conv2d": [{**_CONV, "pad": 2, "dilation": 2}],
    "depthwise_conv2d": [{**_IMAGE, "r": 3, "s": 3, "pad": 1}],
    "max_pool2d": [{**_IMAGE, "r": 2, "s": 2, "stride": 2}],
    "avg_pool2d": [{**_IMAGE, "r": 2, "s": 2, "stride": 2}],
    "attention": [{"b": 1, "h": 12, "i": "T", "j": "T", "d": 64}],
    "moe_dense": [{"t": "4*T", "e": 8, "n": 256, "k": 256}],
    **dict.fromkeys(("softmax", "layer_norm", "rms_norm", "reduce_sum", "reduce_max", "reduce_mean", *CHAINS), ROWS),
}
"""Sizes over T of every operator of the catalogue, and of the chains."""


def benchmarks_of(name: str, target: Target, threads: int, timed: Sequence[int] = TIMED) -> list[Benchmark]:
    """A benchmark for each size of an operator or a chain, timed at these values of T.

    Raises InvalidInput for a name that is neither.
    """
    if name not in SIZES:
        raise InvalidInput("op", f"{name!r} is neither an operator nor a chain", f"one of: {', '.join(sorted(SIZES))}")
    return [_benchmark(name, sizes, target, threads, timed) for sizes in SIZES[name]]


def _benchmark(
    name: str, sizes: Mapping[str, Any], target: Target, threads: int, timed: Sequence[int]
) -> Benchmark:
    data = {"program": CHAINS[name], "extents": sizes} if name in CHAINS else {"op": name, "args": sizes}
    workload: Workload = workload_from_json(data)
    variable = ShapeVar("T", range(1, LARGEST + 1))
    task = SearchTask(workload, shape_vars=(variable,), instances=TUNED, target=target, threads=threads)
    shape = ", ".join(map(str, sizes.values()))
    return Benchmark(f"{name} [{shape}]" if sizes in ROWS else name, task, tuple({"T": value} for value in timed))
