"""What the benchmark of operators tunes: operators of the catalogue, and chains of elementwise ones, with sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fused_cases import FUSED
from benchmarks.operator_programs import CHAINS, FIELDS
from benchmarks.suite import Benchmark
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target

LARGEST = 128
TUNED = (5, 24, 43, 62, 81, 100, 119, 128)
TIMED = (1, 2, 5, 11, 24, 37, 53, 64, 81, 97, 119, 127, 128)
"""Values of T; most of those that are timed are not tuned for."""
THIN_TUNED, THIN_TIMED = (1, 4), (1, 2, 3, 4)
"""Rows of a dense layer that generates a token for each of a few sequences."""

DEFAULT = ("softmax", "layer_norm", "rms_norm", "reduce_sum", "swiglu", "gelu_residual")

ROWS: Sequence[Mapping[str, Any]] = ({"m": "T", "n": 768}, {"m": "8*T", "n": 4096})
WEIGHTS: Sequence[Mapping[str, Any]] = ({"m": "2*T", "n": 3072, "k": 768}, {"m": "2*T", "n": 4096, "k": 4096})
_IMAGE = {"b": "T", "c": 32, "h": 14, "w": 14}
_PLANE = {"b": 1, "r": 3, "s": 3, "pad": 1}
"""Sizes of one image whose channels are as many as in the layers of a network: 8 to 1024."""
_LAST = {"b": 1, "c": "8*T", "r": 3, "s": 3}
_CONV = {**_IMAGE, "o": 32, "r": 3, "s": 3}
_OF_BYTES = {"b": "T", "p": 14, "q": 14, "r": 3, "s": 3}
QUANTIZED: Sequence[Mapping[str, Any]] = ({**_OF_BYTES, "c": 32, "o": 32}, {**_OF_BYTES, "c": 256, "o": 256})
THIN: Sequence[Mapping[str, Any]] = (
    {"m": "T", "n": 768, "k": 768}, {"m": "T", "n": 3072, "k": 768}, {"m": "T", "n": 4096, "k": 4096},
)  # fmt: skip

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
    **dict.fromkeys(("conv2d_int8", "conv2d_int8_nhwc"), QUANTIZED),
    "column_sum": [{"m": "8*T", "n": 768}, {"m": "16*T", "n": 4096}],
    "vector_matrix": [{"k": "16*T", "n": 4096}],
    **dict.fromkeys(("dense_bfloat16", "dense_int8", "dense_int4"), WEIGHTS),
    "mlp": [{"m": "4*T", "k": 256, "f": 1024, "n": 256}, {"m": "4*T", "k": 768, "f": 3072, "n": 768}],
    "swiglu_mlp": [{"m": "4*T", "k": 256, "f": 688, "n": 256}],
    "transpose": [{"a": 8, "b": "T", "c": 768}, {"a": 1, "b": "8*T", "c": "8*T"}],
    "attention": [
        {"b": batch, "h": 12, "i": length, "j": length, "d": 64, **causal}
        for batch, length in ((1, "4*T"), (16, "T"))
        for causal in ({}, {"causal": True})
    ],
    "segment_attention": [{"h": 12, "i": "4*T", "j": "4*T", "d": 64}],
    "dense_float16": WEIGHTS,
    "dense_dynamic_n": [{"m": 64, "n": "16*T", "k": 768}],
    **dict.fromkeys(("thin_dense", "thin_dense_bfloat16"), THIN),
    "moe_dense": [{"t": "4*T", "e": 8, "n": 256, "k": 256}],
    **dict.fromkeys(("softmax", "layer_norm", "rms_norm", "reduce_sum", "reduce_max", "reduce_mean"), ROWS),
    **dict.fromkeys(("swiglu", "gelu_residual"), ROWS),
}
"""Sizes over T of every operator of the catalogue, of the chains, and of VARIANTS."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "dense_float16": {"op": "dense", "dtype": "float16"},
    "dense_dynamic_n": {"op": "dense"},
    "thin_dense": {"op": "dense"},
    "thin_dense_bfloat16": {"op": "dense", "dtype": "bfloat16"},
}
"""Operators of the catalogue under names of their own: another dtype, other dynamic sizes, few rows."""


def _layer(c: int, size: int, o: int, window: int = 1, stride: int = 1) -> Mapping[str, Any]:
    """A convolution of a batch of T images of ``size`` by ``size``, padded so that stride alone makes them smaller."""
    images = {"b": "T", "c": c, "h": size, "w": size, "o": o, "r": window, "s": window}
    return {**images, "stride": stride, "pad": window // 2}


RESNET, ALL = "resnet50", "all"
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
IMAGES_TUNED = (1, 4, 8, 16, 32)
IMAGES_TIMED = (1, 2, 3, 6, 12, 16, 24, 32)
"""Batches of images; most of those that are timed are not tuned for."""


@dataclass(frozen=True)
class Values:
    """The values of T that are tuned for, the largest last, and those that are timed."""

    tuned: tuple[int, ...]
    timed: tuple[int, ...]

    def within(self, timed: Sequence[int] | None) -> Values:
        """Timed at these values, those of the range; at its own where none is."""
        chosen = tuple(value for value in timed or () if value <= self.tuned[-1])
        return Values(self.tuned, chosen or self.timed)


USUAL, IMAGES, FEW = Values(TUNED, TIMED), Values(IMAGES_TUNED, IMAGES_TIMED), Values(THIN_TUNED, THIN_TIMED)


def names_of(names: Sequence[str]) -> list[str]:
    """The operators' names, with ``all`` and ``fused`` (see fused_cases.py) spelled out."""
    families = {ALL: [*SIZES, RESNET, *FUSED], "fused": list(FUSED)}
    return list(dict.fromkeys(each for name in names for each in families.get(name, [name])))


def benchmarks_of(name: str, target: Target, threads: int, timed: Sequence[int] | None = None) -> list[Benchmark]:
    """A benchmark for each size of an operator or a chain, timed at these values of T; ``resnet50`` and its layers are
    timed at batches of images, thin layers at one to four rows.

    Raises InvalidInput for a name that is none of these.
    """
    machine = (target, threads)
    if name == RESNET or name in RESNET50:
        layers = RESNET50 if name == RESNET else {name: RESNET50[name]}
        return [
            benchmark_of(layer, RESNET, {"op": "conv2d", "args": sizes}, IMAGES.within(timed), *machine)
            for layer, sizes in layers.items()
        ]
    if name in FUSED:
        return [
            benchmark_of(
                _label(name, sizes, FUSED[name].sizes), name, FUSED[name].fused(sizes), USUAL.within(timed), *machine
            )
            for sizes in FUSED[name].sizes
        ]
    if name not in SIZES:
        known = f"one of: {', '.join(sorted({*SIZES, RESNET, *RESNET50, *FUSED, ALL, 'fused'}))}"
        raise InvalidInput("op", f"{name!r} is no operator, program or family of this benchmark", known)
    values = (FEW if SIZES[name] is THIN else USUAL).within(timed)
    return [
        benchmark_of(_label(name, sizes, SIZES[name]), name, _workload(name, sizes), values, *machine)
        for sizes in SIZES[name]
    ]


def benchmark_of(
    name: str, operator: str, workload: Mapping[str, Any], values: Values, target: Target, threads: int
) -> Benchmark:
    """``workload`` as a job file has it, over T."""
    variable = ShapeVar("T", range(1, values.tuned[-1] + 1))
    task = SearchTask(
        workload_from_json(workload), shape_vars=(variable,), instances=values.tuned, target=target, threads=threads
    )
    return Benchmark(name, task, tuple({"T": value} for value in values.timed), operator)


def _workload(name: str, sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    if name not in CHAINS:
        return {"op": name, "args": sizes, **VARIANTS.get(name, {})}
    return {"program": CHAINS[name], "extents": sizes, **FIELDS.get(name, {})}


def _label(name: str, sizes: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """The name, with the sizes where there are others."""
    shape = ", ".join(key if value is True else str(value) for key, value in sizes.items())
    return f"{name} [{shape}]" if len(among) > 1 else name
