"""Blocks of programs that are not plain products of matrices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.tuner.schedule.gpu.timed.blocks import Block, kernels_of, operator
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.attention import AttentionTile
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.stages import Blocks
from tuner.schedule.gpu.tiling import Tiling


def attention() -> Iterator[Block]:
    tiles = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 2),
             (128, 128, 8, 3), (64, 128, 4, 3)]  # fmt: skip
    short = {
        f"{rows}-{columns}-{warps}-{stages}-rounded": Choices(
            attention=AttentionTile(rows, columns, num_warps=warps, num_stages=stages)
        )
        for rows, columns, warps, stages in tiles
    }
    long = {
        f"{rows}-{columns}-{warps}-2-{precision}": Choices(
            attention=AttentionTile(rows, columns, num_warps=warps, num_stages=2, precision=precision)
        )
        for rows, columns, warps in ((64, 32, 4), (64, 64, 4), (128, 32, 8))
        for precision in ("tf32x3", "tf32")
    }
    shape = {"b": 2, "h": 16, "i": "S", "j": "S"}
    for size, causal, d in itertools.product((2048, 512, 4096, 1024, 128), (False, True), (64, 128)):
        work = operator("attention", "float16", {**shape, "d": d, "causal": causal})
        yield Block("attention", work, {"S": size}, short)
        if d == 64 and size in (512, 2048):
            work = operator("attention", "float32", {**shape, "d": d, "causal": causal})
            yield Block("attention", work, {"S": size}, long, limit="tf32")


def rows() -> Iterator[Block]:
    operators = ("softmax", "layer_norm", "rms_norm")
    for n, dtype, op in itertools.product((1024, 4096, 8192, 768), ("float16", "float32"), operators):
        block = 1 << (n - 1).bit_length()
        kernels = {
            f"{rows}-{block}-{warps}": Choices(rows=RowTile(rows, block, warps))
            for rows, warps in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (4, 4), (1, 16))
            if 4 <= rows * block / (warps * 32) <= 64
        }
        size = 2 if dtype == "float16" else 4
        m = 2**25 // (n * size)
        work = operator(op, dtype, {"m": "T", "n": n})
        yield Block("rows", work, {"T": m}, kernels)


IMAGES = (
    (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1),
    (256, 56, 64, 1, 1, 0), (64, 56, 256, 1, 1, 0), (128, 56, 128, 3, 2, 1),
)  # fmt: skip
"""Convolutions of ResNet-50: channels, size, channels of the output, window, stride, padding."""


def convolutions() -> Iterator[Block]:
    kernels = kernels_of("128 64 64 4 3", "128 128 64 8 3", "64 64 64 4 4", "64 128 64 4 3", "128 128 32 4 3",
                        "64 64 64 4 3 s", "128 256 64 8 3", "64 64 64 4 4 x4", "64 128 64 4 4 x2", "64 64 64 4 4 x2",
                        pack="nk")  # fmt: skip
    fewer = {name: kernels[name] for name in list(kernels)[:4]}
    long = kernels_of("64 64 32 4 3", "128 64 32 4 3", "64 128 32 4 3", "128 128 32 8 3", precision="tf32x3", pack="nk")
    for (c, h, o, r, stride, pad), layout in itertools.product(IMAGES, ("nhwc", "nchw")):
        args = {"stride": stride, "pad": pad, "layout": layout}
        given = {"b": "T", "c": c, "h": h, "w": h, "o": o, "r": r, "s": r, **args}
        work = operator("conv2d", "float16", given)
        chosen = kernels if layout == "nhwc" else fewer
        yield Block("conv", work, {"T": 16}, chosen)
        if layout == "nhwc" and r == 3 and stride == 1:
            yield Block("conv", operator("conv2d", "float32", given), {"T": 16}, long)


def experts() -> Iterator[Block]:
    kernels = kernels_of("16 128 64 4 4", "32 128 64 4 4", "64 128 64 4 4", "128 128 64 8 3", "128 256 64 8 3",
                        "64 64 128 4 4")  # fmt: skip
    work = operator("moe_dense", "float16", {"t": "T", "e": 8, "n": 2048, "k": 2048})
    for t in (1024, 64, 4096, 256, 16):
        yield Block("experts", work, {"T": t}, kernels)


def quantized() -> Iterator[Block]:
    few = kernels_of("16 64 128 4 4 s", "16 128 128 4 3 s", "32 64 128 4 3 s", "16 64 128 4 4 sx4", "16 64 128 4 4 sx8",
                    "16 32 128 4 4 x4")  # fmt: skip
    many = kernels_of(
        "64 64 128 4 3",
        "128 128 64 8 3 s",
        "64 128 64 4 3 s",
        "256 128 64 8 3 s",
        "128 128 64 8 4 s",
        "256 64 64 4 3 s",
        "128 64 64 4 4 s",
        "64 64 128 4 4 s",
        "64 64 128 4 4 sx2",
        "32 64 128 4 4 sx4",
    )
    single = {"1-64-128-4-3-sums": Choices(product=Tiling(1, 64, 128, num_warps=4, num_stages=3, dot=False))}
    single["1-16-256-4-4-sums"] = Choices(product=Tiling(1, 16, 256, num_warps=4, num_stages=4, dot=False))
    int8 = workload_from_json({
        "program": "out[m, n] = sum(k) x[m, k] * w[n, k] * s[n]", "extents": {"m": "T", "n": 4096, "k": 4096},
        "constant": ["w", "s"], "dtype": {"x": "float16", "w": "int8", "s": "float16", "out": "float16"},
    })  # fmt: skip
    int4 = workload_from_json({
        "op": "dense_int4", "args": {"m": "T", "n": 4096, "k": 4096, "group": 128},
        "dtype": {"x": "float16", "s": "float16", "out": "float16"},
    })  # fmt: skip
    for t, work in itertools.product((1, 16, 256, 64, 1024), (int4, int8)):
        kernels = {**few, **(single if t == 1 else {})} if t <= 16 else many
        yield Block("quantized", work, {"T": t}, kernels)


def others() -> Iterator[Block]:
    """Programs without tiles of a matrix: what they take is memory."""
    blocks = {
        f"{outputs}-{reduced}-{warps}": Choices(blocks=Blocks(outputs, reduced, warps))
        for outputs, reduced, warps in (
            (1024, 16, 4), (2048, 4, 4), (512, 32, 4), (64, 64, 4), (128, 32, 4), (256, 8, 4), (32, 128, 4)
        )
    }  # fmt: skip
    rows = {
        f"rows-{count}-{block}-{warps}": Choices(rows=RowTile(count, block, warps))
        for count, block, warps in ((1, 1024, 4), (2, 1024, 4), (4, 1024, 8), (1, 4096, 8), (1, 8192, 8))
    }
    half = "float16"
    work = workload_from_json({"program": "out[m, n] = x[m, n] * sigmoid(x[m, n]) + y[m, n]",
                               "extents": {"m": "T", "n": 4096}, "dtype": half})  # fmt: skip
    yield Block("others", work, {"T": 4096}, blocks)
    work = workload_from_json({"program": "out[n, m] = x[m, n]", "extents": {"m": "T", "n": 4096}, "dtype": half})
    yield Block("others", work, {"T": 4096}, blocks)
    work = workload_from_json({"program": "out[n] = sum(m) x[m, n]", "extents": {"m": "T", "n": 4096}, "dtype": half})
    yield Block("others", work, {"T": 4096}, blocks)
    yield Block("others", operator("gemv", half, {"n": "T", "k": 8192}), {"T": 8192}, rows)
    given = {"b": "T", "c": 128, "h": 56, "w": 56, "r": 3, "s": 3, "pad": 1}
    yield Block("others", operator("depthwise_conv2d", half, {**given, "stride": 1}), {"T": 16}, blocks)
    yield Block("others", operator("max_pool2d", half, {**given, "stride": 2}), {"T": 16}, blocks)
