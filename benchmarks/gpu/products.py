"""Blocks of matrix products: DietCode's layers and batches, large ones, epilogues, random shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.gpu.blocks import Block, kernels_of, operator
from tuner.program.language.workload import Workload

BERT = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
"""DietCode's dense layers: n, k."""
LARGE = ((4096, 4096), (11008, 4096))
TEST = (1, 2, 5, 11, 24, 37, 43, 53, 62, 64, 81, 97, 100, 119, 127, 128)
"""DietCode's test shapes, with those that were held out."""


FLOAT16 = kernels_of(
    "64 128 64 4 4 ts", "128 128 64 4 3 t", "32 64 128 4 5 ts", "64 64 128 4 4 t", "16 64 256 4 4 ts",
    "64 256 64 4 4 t",
    "64 128 64 4 5 t", "16 64 128 4 4 sx4", "256 128 64 8 4 t", "16 64 128 4 4 s", "128 128 64 8 3 t",
    "64 128 128 4 4 t", "128 256 64 8 3 t", "128 128 64 8 4", "128 64 64 8 3 tp", "128 64 64 8 4 tp", "64 64 64 4 4 tp",
    "128 32 64 4 5 tp", "64 64 64 4 4 tsp", "64 128 64 4 3 tsp",
)  # fmt: skip
TF32 = kernels_of(
    "64 64 64 4 3", "128 128 32 4 4 t", "64 128 32 4 5 t", "64 64 32 4 5 x4", "16 64 64 4 5 s", "64 128 32 8 3 t",
    "128 256 32 8 3 t", "64 64 64 4 4 t", precision="tf32",
)  # fmt: skip
TF32_PACKED = kernels_of(
    "64 64 64 4 3", "128 128 32 4 4 t", "64 128 32 4 5 t", "64 64 32 4 5 x4", "128 128 32 8 4 t", "64 64 64 4 4 t",
    "64 128 32 8 3 t", "64 32 64 4 4 t", precision="tf32", pack="nk",
)  # fmt: skip
TF32X3 = kernels_of(
    "64 64 64 4 3", "32 64 64 4 4 sx4", "64 64 32 4 4", "16 32 128 4 3", "128 128 64 8 3", "32 64 64 4 4 s",
    "16 32 128 4 3 x4", "64 32 64 4 4", "64 64 32 4 4 t", "128 128 32 8 3 t", precision="tf32x3",
)  # fmt: skip
FMA = kernels_of(
    "64 64 16 4 4", "16 64 32 2 4 x4", "64 64 32 4 3 x4", "64 64 32 4 3 x2", "16 64 32 2 4 x8", "32 64 32 2 3 x4",
    "128 64 16 8 3", precision="ieee", pack="kn",
)  # fmt: skip


def _dense(dtype: str, n: int, k: int) -> Workload:
    return operator("dense", dtype, {"m": "16*T", "n": n, "k": k})


def _shapes(values: Sequence[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Layers and T, so that what is cut off is a part of every layer."""
    for t in values:
        for layer in BERT:
            yield layer, t


def dense16() -> Iterator[Block]:
    work = {layer: _dense("float16", *layer) for layer in BERT}
    for layer, t in _shapes(
        (128, 5, 43, 81, 24, 62, 100, 119, *(t for t in TEST if t not in (128, 5, 43, 81, 24, 62, 100, 119)))
    ):
        yield Block("dense16", work[layer], {"T": t}, FLOAT16, "dense", ("mm",))


def dense32() -> Iterator[Block]:
    work = {layer: _dense("float32", *layer) for layer in BERT}
    for layer, t in _shapes(
        (128, 5, 43, 81, 24, 62, 100, 119, *(t for t in TEST if t not in (128, 5, 43, 81, 24, 62, 100, 119)))
    ):
        yield Block("dense32", work[layer], {"T": t}, {**TF32X3, **FMA}, "dense", ("mm", "mm_kn"))


def dense_tf32() -> Iterator[Block]:
    work = {layer: _dense("float32", *layer) for layer in BERT}
    for layer, t in _shapes((128, 5, 43, 81, 24, 62, 100, 119)):
        yield Block(
            "dense_tf32",
            work[layer],
            {"T": t},
            {**dict(list(TF32.items())[:2]), **TF32_PACKED},
            "dense",
            ("mm_tf32",),
            limit="tf32",
        )


def large() -> Iterator[Block]:
    kernels = FLOAT16
    for (n, k), t in itertools.product(LARGE, (1, 8, 32, 128)):
        yield Block("large", _dense("float16", n, k), {"T": t}, kernels, "dense", ("mm",))


def bfloat16() -> Iterator[Block]:
    kernels = {name: FLOAT16[name] for name in [*list(FLOAT16)[:8], *list(FLOAT16)[14:17]]}
    for layer, t in _shapes((128, 43, 5)):
        yield Block("bfloat16", _dense("bfloat16", *layer), {"T": t}, kernels, "dense", ("mm",))


def batched() -> Iterator[Block]:
    short = kernels_of("64 64 64 4 2", "128 64 64 4 2", "64 64 64 4 3", "32 64 64 4 2", "32 32 64 2 2", "16 64 64 2 2",
                      "128 128 64 8 2")  # fmt: skip
    long = kernels_of(
        "64 64 32 4 2", "64 64 32 4 3", "32 32 32 2 2", "64 64 64 4 2", "128 64 32 4 3", precision="tf32x3"
    )
    long |= kernels_of("64 64 16 4 2", "64 32 32 4 2", "32 32 32 2 2", precision="ieee")
    tf32 = kernels_of("64 64 32 4 2", "128 64 32 4 3", "64 64 64 4 2", "32 32 32 2 3", precision="tf32")
    for t in (128, 5, 43, 81, 24, 62, 100, 119, 64, 37):
        for op, args in (("bmm_nt", {"m": "T", "n": "T", "k": 64}), ("bmm_nn", {"m": "T", "n": 64, "k": "T"})):
            name = f"batch_matmul_{op[-2:]}"
            yield Block("batched", operator(name, "float16", {"b": 192, **args}), {"T": t}, short, op, ("bmm",))
            yield Block("batched", operator(name, "float32", {"b": 192, **args}), {"T": t}, long, op, ("bmm",))
            if t in (128, 43, 81):
                work = operator(name, "float32", {"b": 192, **args})
                yield Block("batched", work, {"T": t}, tf32, op, ("bmm_tf32",), limit="tf32")


def against_compiled() -> Iterator[Block]:
    """A few shapes for torch.compile, which tunes each of them for seconds."""
    for (n, k), t in (((2304, 768), 62), ((768, 3072), 24), ((3072, 768), 128)):
        yield Block("compiled", _dense("float16", n, k), {"T": t}, FLOAT16, "dense", ("mm", "compiled"))
    yield Block("compiled", _dense("float32", 3072, 768), {"T": 43}, TF32X3, "dense", ("mm", "compiled"))


def cold() -> Iterator[Block]:
    """DietCode's layers with as many sets of operands as the L2 does not hold."""
    work = {layer: _dense("float16", *layer) for layer in BERT}
    for (n, k), t in _shapes((128, 5, 43, 81, 24, 62, 100, 119)):
        size = 2 * (16 * t * (n + k) + n * k)
        sets = min(-(-160_000_000 // size), 40)
        yield Block("cold", work[n, k], {"T": t}, FLOAT16, "dense", ("mm",), sets=sets)


def rounded_in_registers() -> Iterator[Block]:
    """Kernels that round to TF32 on the way to the tensor cores, at many shapes: one of them was wrong."""
    kernels = kernels_of(
        "128 128 32 8 2 t", "128 128 32 8 3 t", "128 128 32 8 4 t", "128 128 32 8 4", "128 128 64 8 3 t",
        "64 128 32 8 3 t", "64 128 32 8 4 t", "128 64 32 8 4 t", "128 128 32 4 4 t", "128 128 32 4 3 t",
        precision="tf32", pack="nk",
    )  # fmt: skip
    for layer, t in _shapes((128, 43, 100, 5)):
        yield Block("rounded", _dense("float32", *layer), {"T": t}, kernels, "dense", ("mm_tf32",), limit="tf32")


def random_shapes() -> Iterator[Block]:
    """Shapes drawn at random, which are checked and not timed."""
    rng = np.random.default_rng(0)
    axes = {"m": "T", "n": "U", "k": "S"}
    for dtype, kernels in (("float16", FLOAT16), ("float32", {**TF32X3, **FMA})):
        work = operator("dense", dtype, axes)
        for name, choices in kernels.items():
            for _ in range(14):
                m, n, k = (int(rng.integers(1, high)) for high in (2049, 3073, 3073))
                step = int(rng.choice((1, 8, 16)))
                shape = {"T": m, "U": -(-n // step) * step, "S": -(-k // step) * step}
                plain = replace(choices, product=replace(choices.product, descriptors=False, pack=""))
                yield Block("random", work, shape, {name: plain}, "dense", ())


def epilogues() -> Iterator[Block]:
    up, down = ({"m": "16*T", "n": n, "k": k} for n, k in BERT[2:])
    for t in (128, 24, 5, 64):
        work = operator("dense", "float16", up, ("bias", "gelu"))
        yield Block("epilogue", work, {"T": t}, FLOAT16, "linear_gelu", ("linear_gelu", "mm"))
        work = operator("dense", "float32", up, ("bias", "gelu"))
        kernels = {name: TF32X3[name] for name in list(TF32X3)[:6]}
        yield Block("epilogue", work, {"T": t}, kernels, "linear_gelu", ("linear_gelu", "mm"))
        work = operator("dense", "float16", down, ("bias", "add"))
        yield Block("epilogue", work, {"T": t}, FLOAT16, "linear_add", ("linear_add", "mm"))
