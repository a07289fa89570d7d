"""What a GPU is expected to take for a product (see work.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.language.dtypes import DTYPES
from tuner.program.target.cuda import WARP, Gpu
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.gpu.tiling import Tiling, multiplied_type
from tuner.schedule.gpu.work import (
    BYTES_BY_DESCRIPTOR,
    BYTES_PER_CYCLE,
    CACHED_SHARE,
    L2_BYTES_PER_CYCLE,
    MEMORY_SHARE,
    POINTERS_STEP_S,
    STEP_S,
    TILES_STORED,
    Floats,
    Work,
    programs_at_once,
)

TENSOR_SHARE, FMA_SHARE = 0.95, 0.85
"""Of the rates of tensor cores and of multiply-adds that tiles reach."""
PARTS_SHARE = 0.92
"""Of the rate of a whole tile, where it has parts."""
TF32X3_SHARE, TF32X3_GROUPS_SHARE = 0.22, 0.48
"""Of TF32's rate, in three products whose operands are split; and of that, where several groups of warps have the same
rows, which each of them splits."""
SURPLUS_COLUMNS = 20
"""Columns that each instruction on a tile costs beyond its own."""
OTHER_REGISTERS = 56
"""Registers of a thread beside those of sums."""
ONE_BY_ONE = 1.0
"""Registers of each product that is added by itself."""
OPERANDS = {"tf32x3": 2.0, "ieee": 0.5}
"""Registers of each element of a step that is split, or broadcast to the lanes, before it is multiplied as float32."""
PREPARED_S = 0.1e-6
"""Of a step whose elements are computed before they are multiplied, as decoded ones are: loads do not hide it."""
SHARES_S = 3.4e-6
"""Of the kernel that adds shares of k, beside its bytes."""
FLOAT32_BYTES = 4
GROUP = 4
"""Warps that take an instruction together."""
TENSOR_CORES, TILE_OF_WARP = 4, (16, 8)
"""Of an SM, each of which multiplies for other warps; rows and columns that a warp multiplies at least."""


@dataclass(frozen=True)
class Multiplied:
    """What is multiplied: the dtype (tf32 for float32 by tensor cores), bytes of an element, and the share of the rate
    that the way allows in which the right side lies.

    ``stored``: bytes of an element of the left and the right side in memory; ``operations``: those that make it an
    element that is multiplied, as of numbers of four bits.
    """

    dtype: str
    size: int
    share_of_rate: float = 1.0
    stored: tuple[float, float] | None = None
    operations: tuple[float, float] = (0.0, 0.0)

    @property
    def in_memory(self) -> tuple[float, float]:
        return self.stored or (self.size, self.size)


@dataclass(frozen=True)
class Problem:
    """A product: extents, the dtype that is multiplied and bytes of an element."""

    m: int
    n: int
    k: int
    dtype: str
    size: int
    batch: int = 1

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.batch

    @property
    def multiplied(self) -> Multiplied:
        return Multiplied(self.dtype, self.size)


def problem_of(product: Contraction, tiling: Tiling, dims: Mapping[str, int]) -> Problem:
    """A contraction at these values of the workload's symbols."""
    sizes = {
        role: math.prod(max(product.parts[name].extent.evaluate(dims), 0) for name in names)
        for role, names in (("m", product.m), ("n", product.n), ("k", product.k), ("b", product.outer))
    }
    dtype = multiplied_type(product, tiling.dot)
    has_tensor = tiling.dot and (dtype != "float32" or tiling.precision != "ieee")
    of_cores = "tf32" if dtype == "float32" and has_tensor else dtype
    return Problem(sizes["m"], sizes["n"], sizes["k"], of_cores, DTYPES[dtype].bytes, sizes["b"])


def shared_bytes(tiling: Tiling, size: int) -> int:
    """Shared memory of a program: a tile of either side for each stage."""
    rows, columns = tiling.block_m, tiling.block_n
    rows, columns = (rows * tiling.parts, columns) if tiling.swap else (rows, columns * tiling.parts)
    return (rows + columns) * tiling.block_k * size * max(tiling.num_stages, 1)


def registers(tiling: Tiling, size: int) -> int:
    """Registers of a thread as they are expected before anything is compiled. ``size``: bytes of an element."""
    threads = tiling.num_warps * WARP
    if not tiling.dot:
        # Products are a tile of three dims, and so are both sides until they are multiplied.
        return int(ONE_BY_ONE * tiling.block_m * tiling.block_n * tiling.block_k / threads) + OTHER_REGISTERS
    sums = tiling.block_m * tiling.block_n * tiling.parts / threads
    split = OPERANDS.get(tiling.precision, 0.0) * (tiling.block_m + tiling.block_n) * tiling.block_k / threads
    return int(sums + (split if size == FLOAT32_BYTES else 0.0)) + OTHER_REGISTERS


def occupancy(gpu: Gpu, tiling: Tiling, size: int, used: int | None = None) -> int:
    """Programs that are on an SM at once; 0 for a tiling that does not fit. ``used``: registers of a thread, if
    known."""
    shared = shared_bytes(tiling, size) if tiling.dot else 0
    return programs_at_once(gpu, tiling.num_warps, used or registers(tiling, size), shared)


def estimate_s(gpu: Gpu, tiling: Tiling, problems: Sequence[Problem], used: int | None = None) -> Floats:
    """[problems]: seconds that theory expects; inf for a tiling that does not fit."""
    each = [
        work_of(gpu, [tiling], [problem.multiplied], problem.extents, used=used).seconds(gpu)[0, 0]
        for problem in problems
    ]
    return np.array(each)


def work_of(
    gpu: Gpu, tilings: Sequence[Tiling], multiplied: Sequence[Multiplied], extents: Sequence[Floats | int],
    used: int | None = None,
) -> Work:  # fmt: skip
    """The work of a product by each tiling, which go with what is multiplied one by one. ``extents``: m, n, k, and the
    batch, each [shapes] or a number."""
    m, n, k, batch = (np.asarray(extent, np.float64) for extent in extents)

    def column(values: Iterable[float]) -> Floats:
        return np.array(list(values), np.float64)[:, None]

    pairs = list(zip(tilings, multiplied, strict=True))
    split, block_k = (column(getattr(each, name) for each in tilings) for name in ("split_k", "block_k"))
    size = column(each.size for each in multiplied)
    width_m = column(each.block_m * (each.parts if each.swap else 1) for each in tilings)
    width_n = column(each.block_n * (1 if each.swap else each.parts) for each in tilings)
    left, right = (column(each.in_memory[side] for each in multiplied) for side in (0, 1))
    prepared = [column(each.operations[side] for each in multiplied) for side in (0, 1)]
    lanes_s = gpu.architecture.fma_lanes * gpu.clock_mhz * 1e6
    tiles = np.ceil(m / width_m) * np.ceil(n / width_n) * batch
    has_tma = gpu.architecture.has_tma
    return Work(
        programs=tiles * split,
        steps=np.ceil(np.ceil(k / block_k) / split),
        step_s=column(_flops(gpu, what, tiling) / (_flops_s(gpu, what, tiling) / gpu.sms) for tiling, what in pairs)
        + (width_m * prepared[0] + width_n * prepared[1]) * block_k / lanes_s
        + np.where(prepared[0] + prepared[1] > 0, PREPARED_S, 0.0),
        beside_s=column(STEP_S if each.descriptors and has_tma else POINTERS_STEP_S for each in tilings),
        loaded=(width_m * left + width_n * right) * block_k,
        stored=width_m * width_n * np.where(split > 1, 4, size),
        store_rate=TILES_STORED,
        distinct=(m * k * left + n * k * right + m * n * size) * batch,
        at_once=column(occupancy(gpu, tiling, what.size, used) for tiling, what in pairs),
        in_flight=column(max(each.num_stages - 1, 1) for each in tilings),
        rate=column(BYTES_BY_DESCRIPTOR if each.descriptors and has_tma else BYTES_PER_CYCLE for each in tilings),
        filling=column(max(TENSOR_CORES / _multiplying_warps(each), 1.0) for each in tilings),
        more_s=np.where(split > 1, SHARES_S + added_s(gpu, m * n * batch, split, size), 0.0),
    )


def added_s(gpu: Gpu, results: Floats, split: Floats, size: Floats) -> Floats:
    """What reading the shares of so many results takes, and writing their sums, of ``size`` bytes each."""
    shares = FLOAT32_BYTES * split * results
    of_memory = MEMORY_SHARE * gpu.memory_bytes_s
    of_cache = L2_BYTES_PER_CYCLE * gpu.clock_mhz * 1e6 * gpu.sms
    return (shares + results * size) / np.where(shares > CACHED_SHARE * gpu.l2_bytes, of_memory, of_cache)


def _multiplying_warps(tiling: Tiling) -> int:
    """Those that have products of their own: there are no more than smallest tiles."""
    rows, columns = TILE_OF_WARP
    tiles = (tiling.block_m // rows) * (tiling.block_n * tiling.parts // columns)
    return min(tiling.num_warps, max(tiles, 1)) if tiling.dot else tiling.num_warps


def _has_cores(what: Multiplied, tiling: Tiling) -> bool:
    return tiling.dot and what.dtype != "float32"


def _flops_s(gpu: Gpu, what: Multiplied, tiling: Tiling) -> float:
    if not _has_cores(what, tiling):
        return gpu.fma_flops_s() * FMA_SHARE * what.share_of_rate
    share = TENSOR_SHARE * what.share_of_rate * (PARTS_SHARE if tiling.parts > 1 else 1.0)
    if what.dtype == "tf32" and tiling.precision == "tf32x3":
        rows = tiling.block_n if tiling.swap else tiling.block_m
        has_rows = tiling.num_warps // GROUP <= max(rows // gpu.architecture.matrix_rows, 1)
        share *= TF32X3_SHARE * (1.0 if has_rows else TF32X3_GROUPS_SHARE)
    return gpu.tensor_flops_s(what.dtype) * share


def _flops(gpu: Gpu, what: Multiplied, tiling: Tiling) -> float:
    """Operations of a step, with those that an instruction wastes on rows that there are not, and beside its columns.
    Groups of warps share rows first, then columns."""
    rows, columns = (tiling.block_n, tiling.block_m) if tiling.swap else (tiling.block_m, tiling.block_n)
    if _has_cores(what, tiling):
        least, groups = gpu.architecture.matrix_rows, max(tiling.num_warps // GROUP, 1)
        along = min(groups, max(rows // least, 1))
        rows = max(rows, least * along)
        columns += SURPLUS_COLUMNS * (groups // along)
    return 2.0 * rows * columns * tiling.parts * tiling.block_k
