"""What theory expects of a micro-kernel on a shape: the analytic half of the cost model.

The time of a call is the sum over the blocks and panels of the loop nest of the larger of

- computing: cycles of the register tile's inner loop, bound by the multiply-add units, by loads, by the latency of the
  accumulators' dependence chains or by the decoder, for the full tiles, the ragged rest of the rows (padded or exact)
  and the ragged last panel;
- streaming: each panel of the right operand comes from L3 once per block of rows; prefetching hides that behind the
  computing, otherwise part of it adds up;

plus the traffic of the output, packing where it is done at each call, and a cost for launching. Threads take
contiguous shares of tiles and panels, the largest share counts (ceil(tiles / threads)). The constants are round figures
for current server cores; the learned residual corrects them for a device, so only the shape of the formula matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.kernel import MicroKernel
from tuner.rules._base import Extents
from tuner.target import Hardware
from tuner.task import SearchTask

Floats = NDArray[np.float64]

CLOCK_HZ = 3.0e9
FMA_LATENCY = 4.0
LOADS_PER_CYCLE = 2.0
DECODE_WIDTH = 6.0
L2_BYTES_PER_CYCLE = 40.0
L3_BYTES_PER_CYCLE = 10.0
STORE_BYTES_PER_CYCLE = 12.0
TILE_CYCLES = 30.0
CALL_CYCLES = 900.0
FORK_CYCLES = 12_000.0
HIDDEN_BY_HARDWARE = 0.5
"""The share of a stream's time that the hardware's own prefetching hides behind computing."""


@dataclass(frozen=True)
class _Terms:
    """The parts of the estimate in cycles, one value for each shape."""

    compute: Floats
    stream: Floats
    output: Floats
    packing: Floats
    total: Floats
    useful: Floats
    """Cycles if every multiply-add unit did useful work in every cycle."""


def latency_s(hardware: Hardware, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
    return _terms(hardware, task, kernel, extents).total / CLOCK_HZ


def features(hardware: Hardware, task: SearchTask, kernel: MicroKernel, extents: Extents) -> NDArray[np.float32]:
    """[shapes, features]: logarithms of the extents, the kernel's values, and how the terms compare."""
    terms = _terms(hardware, task, kernel, extents)
    m, n, k = (np.asarray(extents[axis], np.float64) for axis in "mnk")
    mr, nr = kernel["mr"], kernel["nv"] * hardware.lanes()
    tiles, panels = np.floor(m / mr), np.ceil(n / nr)
    columns: list[Floats | float] = [
        np.log2(m + 1), np.log2(n + 1), np.log2(k + 1),
        np.log2(terms.total), np.log2(np.maximum(terms.compute, 1.0) / terms.useful), terms.stream / terms.total,
        terms.output / terms.total, terms.packing / terms.total,
        m - tiles * mr, (m - tiles * mr) / np.maximum(m, 1), panels * nr / np.maximum(n, 1) - 1,
        np.log2(tiles + 1), np.minimum(tiles, kernel["mb"]), np.log2(k * nr * 4 / hardware.l2_bytes),
        np.log2(np.minimum(tiles, kernel["mb"]) * mr * k * 4 / hardware.l2_bytes + 2**-10),
        *(float(value) for _, value in kernel.values),
        float(mr * kernel["nv"]),
    ]  # fmt: skip
    return np.stack([np.broadcast_to(column, m.shape) for column in columns], axis=1).astype(np.float32)


def _terms(hardware: Hardware, task: SearchTask, kernel: MicroKernel, extents: Extents) -> _Terms:
    m, n, k = (np.asarray(extents[axis], np.float64) for axis in "mnk")
    lanes, mr, nv = hardware.lanes(), kernel["mr"], kernel["nv"]
    nr, columns = nv * lanes, kernel["tn"]
    rows = task.threads // columns

    tiles = np.floor(m / mr)
    rest = m - tiles * mr
    share_tiles = np.ceil(tiles / rows)
    full_panels = np.ceil(np.floor(n / nr) / columns)
    ragged_vectors = np.ceil((n - np.floor(n / nr) * nr) / lanes)
    blocks = np.maximum(np.ceil(share_tiles / kernel["mb"]), 1)

    rest_rows = rest if kernel["tail"] else np.where(rest > 0, float(mr), 0.0)
    per_panel = share_tiles * _tile_cycles(hardware, kernel, k, float(mr), nv)
    per_panel = per_panel + np.where(rest > 0, _tile_cycles(hardware, kernel, k, rest_rows, nv), 0.0)
    ragged = share_tiles * _tile_cycles(hardware, kernel, k, float(mr), np.maximum(ragged_vectors, 1))
    ragged = ragged + np.where(
        rest > 0, _tile_cycles(hardware, kernel, k, rest_rows, np.maximum(ragged_vectors, 1)), 0.0
    )
    compute = full_panels * per_panel + np.where(ragged_vectors > 0, ragged, 0.0)

    # The right operand comes from L3 once per block, unless all of it stays in L2 beside the block's rows.
    panels = full_panels + (ragged_vectors > 0)
    right_bytes = panels * k * nr * 4
    stays = right_bytes + np.minimum(share_tiles, kernel["mb"]) * mr * k * 4 < 0.8 * hardware.l2_bytes
    stream = right_bytes * np.where(stays, 1 / L2_BYTES_PER_CYCLE, blocks / L3_BYTES_PER_CYCLE)
    # The block's rows are read again for every panel: from L2, or from L3 where they do not fit.
    block_bytes = np.minimum(share_tiles, kernel["mb"]) * mr * k * 4
    compute = compute + np.where(
        block_bytes > 0.7 * hardware.l2_bytes,
        panels * (share_tiles * mr + rest) * k * 4 / L3_BYTES_PER_CYCLE * 0.5,
        0.0,
    )
    hidden = 0.9 if kernel["ahead"] or kernel["near"] else HIDDEN_BY_HARDWARE
    packing = np.zeros_like(m)
    if kernel["pack"]:
        packing = n * k * 4 / columns * (1 / L3_BYTES_PER_CYCLE + 1 / STORE_BYTES_PER_CYCLE)
    elif not task.workload.op.contraction.right.constant:
        # Rows of the operand lie n elements apart: a new page for each step of k once they are long.
        stream = stream * np.where(n * 4 > 2048, 2.0, 1.2)
    output = m * n * 4 / (rows * columns) / STORE_BYTES_PER_CYCLE
    busy = np.maximum(compute, stream) + (1 - hidden) * np.minimum(compute, stream)
    total = busy + packing + output + CALL_CYCLES + (FORK_CYCLES if task.threads > 1 else 0.0)
    useful = np.maximum(m * n * k / lanes / hardware.fma_per_cycle / task.threads, 1.0)
    return _Terms(compute, stream, output, packing, total, useful)


def _tile_cycles(
    hardware: Hardware, kernel: MicroKernel, k: Floats, rows: float | Floats, vectors: float | Floats
) -> Floats:
    """Cycles of one register tile over all of ``k``."""
    work = rows * vectors
    prefetches = (vectors if kernel["near"] else 0) + (vectors / kernel["ku"] if kernel["ahead"] else 0)
    operations = work + vectors + rows * 0.5 + prefetches + 2.0 / kernel["ku"]
    step = np.maximum.reduce(
        np.broadcast_arrays(
            work / hardware.fma_per_cycle,
            (vectors + rows) / LOADS_PER_CYCLE,
            operations / DECODE_WIDTH,
            FMA_LATENCY,
            vectors * hardware.vector_bytes / L2_BYTES_PER_CYCLE,
        )
    )
    return np.asarray(k * (step + 0.25 / kernel["ku"]) + TILE_CYCLES + rows * vectors)
