"""Blocks of matrix products: DietCode's layers and batches, and large ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.tuner.schedule.gpu.timed.blocks import Block, kernels_of, operator
from tuner.program.language.workload import Workload

BERT = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
"""DietCode's dense layers: n, k."""
LARGE = ((4096, 4096), (11008, 4096))
FLOAT16 = kernels_of(
    "64 128 64 4 4 ts", "128 128 64 4 3 t", "32 64 128 4 5 ts", "64 64 128 4 4 t", "16 64 256 4 4 ts",
    "64 256 64 4 4 t",
    "64 128 64 4 5 t", "16 64 128 4 4 sx4", "256 128 64 8 4 t", "16 64 128 4 4 s", "128 128 64 8 3 t",
    "64 128 128 4 4 t", "128 256 64 8 3 t", "128 128 64 8 4", "128 64 64 8 3 tp", "128 64 64 8 4 tp", "64 64 64 4 4 tp",
    "128 32 64 4 5 tp", "64 64 64 4 4 tsp", "64 128 64 4 3 tsp",
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


def large() -> Iterator[Block]:
    for (n, k), t in itertools.product(LARGE, (1, 8, 32, 128)):
        yield Block("large", _dense("float16", n, k), {"T": t}, FLOAT16)


def bfloat16() -> Iterator[Block]:
    kernels = {name: FLOAT16[name] for name in [*list(FLOAT16)[:8], *list(FLOAT16)[14:17]]}
    for t, layer in itertools.product((128, 43, 5), BERT):
        yield Block("bfloat16", _dense("bfloat16", *layer), {"T": t}, kernels)


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
            yield Block("batched", operator(name, "float16", {"b": 192, **args}), {"T": t}, short)
            yield Block("batched", operator(name, "float32", {"b": 192, **args}), {"T": t}, long)
            if t in (128, 43, 81):
                work = operator(name, "float32", {"b": 192, **args})
                yield Block("batched", work, {"T": t}, tf32, limit="tf32")
