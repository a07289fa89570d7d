"""Every operator of the catalogue, with sizes that are small, ragged and known only at run time where they may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target

_IMAGE = {"b": "B", "c": 4, "h": "T", "w": 19, "o": 6, "r": 3, "s": 2, "pad": 1}
_IMAGES = {name: _IMAGE[name] for name in ("b", "c", "h", "w", "r", "s", "pad")}

ARGS: Mapping[str, Mapping[str, Any]] = {
    "attention": {"b": "B", "h": 2, "i": "T", "j": "S", "d": 24, "causal": True},
    "avg_pool2d": _IMAGES,
    "batch_matmul_nn": {"b": "B", "m": "T", "n": "S", "k": "S"},
    "batch_matmul_nt": {"b": "B", "m": "T", "n": "S", "k": "S"},
    "bilinear": {"b": "T", "o": 7, "i": 9, "j": 21},
    "conv1d": {"b": "B", "c": 5, "w": "T", "o": 9, "s": 3, "stride": 2},
    "conv1d_transpose": {"b": "B", "c": 5, "w": "T", "o": 9, "s": 3, "stride": 2},
    "conv2d": _IMAGE,
    "conv2d_transpose": _IMAGE | {"stride": 2},
    "conv3d": {"b": "B", "c": 2, "d": "T", "h": 5, "w": 6, "o": 3, "t": 2, "r": 3, "s": 3, "pad": 1},
    "conv3d_transpose": {"b": "B", "c": 2, "d": "T", "h": 3, "w": 4, "o": 3, "t": 2, "r": 3, "s": 3},
    "dense": {"m": "4*T", "n": 200, "k": 120},
    "dense_int4": {"m": "T", "n": 45, "k": 70},
    "depthwise_conv2d": _IMAGES | {"dilation": 2, "pad": 3},
    "dilated_conv2d": _IMAGE | {"dilation": 2, "pad": 2},
    "gemv": {"n": "T", "k": "S"},
    "group_conv2d": _IMAGE | {"groups": 2, "layout": "nhwc"},
    "layer_norm": {"m": "T", "n": "S"},
    "matmul": {"m": "T", "n": "S", "k": "S"},
    "max_pool2d": _IMAGES | {"stride": 2},
    "moe_dense": {"t": "T", "e": 5, "n": 33, "k": 40},
    "reduce_max": {"m": "T", "n": "S"},
    "reduce_mean": {"m": "T", "n": "S"},
    "reduce_sum": {"m": "T", "n": "S"},
    "rms_norm": {"m": "T", "n": "S"},
    "softmax": {"m": "T", "n": "S"},
}
RANGES = {"B": range(1, 5), "S": range(1, 151), "T": range(1, 65)}


def op_task(
    op: str, target: Target | str = "native", threads: int = 1, epilogue: Sequence[str] = (), dtype: str = "float32"
) -> SearchTask:
    """A search of an operator over RANGES."""
    workload = make_workload(op, ARGS[op], dtype, epilogue)
    variables = [ShapeVar(name, RANGES[name]) for name in sorted(workload.variables)]
    return SearchTask(workload, shape_vars=variables, target=target, threads=threads)


def ragged_shapes(
    workload: Workload, count: int, seed: int = 0, most: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Values of the symbols for ``count`` shapes, those of 0 and of 1 first; beyond RANGES, too."""
    names, rng = sorted(workload.variables), np.random.default_rng(seed)
    limits = most or {name: 2 * RANGES[name].stop for name in names}
    drawn: list[dict[str, int]] = [dict.fromkeys(names, 0), dict.fromkeys(names, 1)]
    while count > 0:
        shape = drawn.pop(0) if drawn else {name: _size(rng, limits[name]) for name in names}
        dims = workload.dims(shape)
        if min(dims.values()) >= 0 and workload.is_consistent(dims):
            yield dims
            count -= 1


def _size(rng: np.random.Generator, most: int) -> int:
    """0 or 1 now and then, and small ones as likely as large ones."""
    return int(rng.choice([0, 1, int(rng.integers(0, most)), int(most ** rng.random())]))
