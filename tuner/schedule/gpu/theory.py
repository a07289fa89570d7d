"""What a GPU is expected to take for a product, and the tilings that are worth compiling.

A program of a tile takes ``steps`` of k; an SM gets ``programs`` of them, ``at once`` as many as registers, shared
memory and warps allow. A step takes the largest of what its products take, of what its bytes take from L2, and of the
latency of a load over the stages in flight (a p-norm, so that near ties cost more). Constants are shares of the
hardware's rates (tuner.program.target.cuda), set down from one H100 (docs/decisions/0069). They are not fitted to a
device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.dtypes import DTYPES
from tuner.program.target.cuda import REGISTERS, WARP, Gpu
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.gpu.tiling import Tiling, multiplied_type

LAUNCH_S, LATENCY_S, PROLOGUE_S, STEP_S = 0.4e-6, 0.4e-6, 0.5e-6, 0.03e-6
"""Of a launch, of a load, of a program before its first step, and of a step beside its work."""
TENSOR_SHARE, FMA_SHARE = 0.74, 0.68
"""Of the rates of tensor cores and of multiply-adds that tiles reach."""
TF32X3_SHARE = 0.30
"""Of TF32's rate, in three products whose operands are split."""
SURPLUS_COLUMNS = 8
"""Columns that each instruction on a tile costs beyond its own."""
BYTES_PER_CYCLE, BYTES_BY_DESCRIPTOR = 30.0, 45.0
"""From L2 to an SM in a cycle."""
STORE_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE = 25.0, 30.0
MEMORY_SHARE = 0.87
"""Of the bandwidth of the memory that is reached."""
MATRIX_ROWS = 64
"""Rows of an instruction of four warps on Hopper."""
NORM = 5.0
OTHER_REGISTERS = 56
"""Registers of a thread beside those of sums."""
SHARES_S = 1.5e-6
"""Of the kernel that adds shares of k."""
CANDIDATES = 20
"""Tilings that are compiled, the best ones in theory first."""


@dataclass(frozen=True)
class Problem:
    """A product: extents, the dtype that is multiplied (tf32 for float32 by tensor cores) and bytes of an element."""

    m: int
    n: int
    k: int
    dtype: str
    size: int
    batch: int = 1


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


def registers(tiling: Tiling) -> int:
    """Registers of a thread as they are expected before anything is compiled."""
    sums = tiling.block_m * tiling.block_n * tiling.parts / (tiling.num_warps * WARP)
    return int(sums) + OTHER_REGISTERS


def occupancy(gpu: Gpu, tiling: Tiling, size: int, used: int | None = None) -> int:
    """Programs that are on an SM at once; 0 for a tiling that does not fit. ``used``: registers of a thread, if
    known."""
    arch, warps, each = gpu.architecture, tiling.num_warps, used or registers(tiling)
    shared = shared_bytes(tiling, size)
    if each > 255 or shared > arch.block_shared_bytes:
        return 0
    by_registers = REGISTERS // (math.ceil(each * WARP / 256) * 256 * warps)
    return max(min(by_registers, arch.shared_bytes // (shared + 1024), arch.warps // warps, arch.blocks), 0)


def estimate_s(gpu: Gpu, tiling: Tiling, problems: Sequence[Problem], used: int | None = None) -> NDArray[np.float64]:
    """[problems]: seconds that theory expects; inf for a tiling that does not fit."""
    return np.array([_estimate_s(gpu, tiling, problem, used) for problem in problems])


def _estimate_s(gpu: Gpu, tiling: Tiling, problem: Problem, used: int | None) -> float:
    at_once = occupancy(gpu, tiling, problem.size, used)
    if not at_once:
        return math.inf
    clock, size, split = gpu.clock_mhz * 1e6, problem.size, tiling.split_k
    width_m, width_n = tiling.block_m, tiling.block_n
    width_m, width_n = (width_m * tiling.parts, width_n) if tiling.swap else (width_m, width_n * tiling.parts)
    tiles = math.ceil(problem.m / width_m) * math.ceil(problem.n / width_n) * problem.batch
    steps = math.ceil(math.ceil(problem.k / tiling.block_k) / split)
    programs = math.ceil(tiles * split / gpu.sms)
    at_once = min(at_once, programs)
    by_descriptor = tiling.descriptors and gpu.architecture.has_tma
    bandwidth = (BYTES_BY_DESCRIPTOR if by_descriptor else BYTES_PER_CYCLE) * clock
    loaded = (width_m + width_n) * tiling.block_k * size
    stored = width_m * width_n * (4 if split > 1 else size)
    flops_s = _flops_s(gpu, problem.dtype, tiling) / gpu.sms
    work = _flops(gpu, tiling) / flops_s

    def program(count: int) -> float:
        step = _norm(count * work + STEP_S, count * loaded / bandwidth, LATENCY_S / max(tiling.num_stages - 1, 1))
        head = PROLOGUE_S + LATENCY_S + count * loaded / bandwidth
        return head + steps * step + count * stored / (STORE_BYTES_PER_CYCLE * clock)

    rest = programs % at_once
    sm = programs // at_once * program(at_once) + (program(rest) if rest else 0.0)
    traffic = tiles * split * steps * loaded / (L2_BYTES_PER_CYCLE * clock * gpu.sms)
    distinct = (problem.m * problem.k + problem.n * problem.k + problem.m * problem.n) * size * problem.batch
    memory = distinct / (MEMORY_SHARE * gpu.memory_bytes_s) if distinct > 0.7 * gpu.l2_bytes else 0.0
    return LAUNCH_S + _norm(sm, traffic, memory) + (SHARES_S if split > 1 else 0.0)


def _norm(*values: float) -> float:
    return float(sum(value**NORM for value in values) ** (1 / NORM))


def _flops_s(gpu: Gpu, dtype: str, tiling: Tiling) -> float:
    if dtype == "float32" or not tiling.dot:
        return gpu.fma_flops_s() * FMA_SHARE
    share = TENSOR_SHARE * (TF32X3_SHARE if tiling.precision == "tf32x3" else 1.0)
    return gpu.tensor_flops_s(dtype) * share


def _flops(gpu: Gpu, tiling: Tiling) -> float:
    """Operations of a step, with those that an instruction wastes on rows that there are not."""
    rows, columns = (tiling.block_n, tiling.block_m) if tiling.swap else (tiling.block_m, tiling.block_n)
    if tiling.dot:
        least, groups = gpu.architecture.matrix_rows, max(tiling.num_warps // 4, 1)
        rows = max(rows, least * min(groups, max(rows // least, 1)))
    return 2.0 * rows * (columns + SURPLUS_COLUMNS) * tiling.parts * tiling.block_k


# -- candidates -------------------------------------------------------------------------------------------------------
def candidates(gpu: Gpu, problem: Problem) -> Iterator[Tiling]:
    """The tilings of a product that fit a GPU."""
    has_tensor = problem.dtype != "float32"
    precision = {"float32": "ieee", "tf32": "tf32x3"}.get(problem.dtype, "ieee")
    rows, columns = ((16, 32, 64, 128, 256), (32, 64, 128, 256)) if has_tensor else ((16, 32, 64, 128), (32, 64, 128))
    depths = (32, 64, 128, 256) if problem.size < 4 else (16, 32, 64, 128)
    ways = (False, True) if gpu.architecture.has_tma and has_tensor else (False,)
    for block_m, block_n, block_k, warps, stages, split, by_descriptor in itertools.product(
        rows, columns, depths, (4, 8), (2, 3, 4, 5), (1, 2, 4), ways
    ):
        tiling = Tiling(
            block_m, block_n, block_k, split_k=split, num_warps=warps, num_stages=stages, precision=precision,
            swap=has_tensor and block_m < MATRIX_ROWS <= block_n, descriptors=by_descriptor,
        )  # fmt: skip
        if warps == 8 and block_m * block_n < 128 * 64:
            continue
        if occupancy(gpu, tiling, problem.size):
            yield tiling if has_tensor else replace(tiling, pack="kn")


def ranked(gpu: Gpu, problems: Sequence[Problem], count: int = CANDIDATES) -> list[Tiling]:
    """The tilings that theory has for the best over all of some problems, one that is best at a single one first.

    What a tiling takes beyond the best one at a problem counts as a share, so that small problems count as much.
    """
    every = list(dict.fromkeys(itertools.chain.from_iterable(candidates(gpu, problem) for problem in problems[:1])))
    seconds = np.array([estimate_s(gpu, tiling, problems) for tiling in every])
    loss = np.log(seconds / seconds.min(axis=0))
    best_somewhere = list(dict.fromkeys(seconds.argmin(axis=0).tolist()))
    order = [*best_somewhere, *(int(at) for at in loss.mean(axis=1).argsort() if at not in best_somewhere)]
    return [every[at] for at in order[:count]]
