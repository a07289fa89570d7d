"""What theory expects of micro-kernels on shapes: the analytic half of the cost model.

The time of a call is about the larger of computing and streaming, and a share of the smaller one that is not hidden,
plus what is done besides:

- computing: cycles of the register tile's inner loop, bound by the multiply-add units, by loads, by the latency of the
  accumulators' dependence chains or by the decoder, for the full tiles, the ragged rest of the rows (padded or exact)
  and the ragged last panel; more where a panel comes from L2 for each tile and not from L1;
- streaming: each panel of the right operand comes from L3 once per block of rows, and the rows of a block again for
  each panel if the block does not stay in L2; prefetching hides more of that behind the computing, and without it the
  first tile over each panel of a constant waits for it (streams.py);
- besides: the traffic of the output (once more for each further chunk of k), packing, launching, waking threads.

What the task's protocol flushes from the caches between calls comes from memory the first time. Threads take contiguous
shares of batches, tiles and panels; the largest share counts (ceil(tiles / threads)). The rates are those of the task:
fitted to the device (docs/decisions/0046), or once to random micro-kernels elsewhere (docs/decisions/0007). A change of
a formula here takes another version of calibrations (tuner/program/target/calibration.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule.layout import LINE_BYTES
from tuner.schedule.loops.estimates import PAGE_BYTES, Floats, is_flushed, pushed_out
from tuner.schedule.product.product import Product
from tuner.schedule.product.sizes import REGISTER_BYTES
from tuner.schedule.product.streams import WAYS, Streams
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

GATHERED = 4.0
"""Cycles of an element that is gathered by itself."""
KNEE = 6.0
"""How sharply the larger of computing and streaming takes over: where they are equal, both together take 2^(1/KNEE) as
long as each. The best of 4, 6, 8, 12 and none for 240 kernels of five dense layers on an AMD EPYC (Zen 4)."""


class _Terms(NamedTuple):
    """The parts of the estimate in cycles, [kernels, shapes]. ``useful``: if every multiply-add unit did useful work in
    every cycle."""

    compute: Floats
    stream: Floats
    output: Floats
    packing: Floats
    total: Floats
    useful: Floats


def latency_s(task: SearchTask, product: Product, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return Estimate(task, product, kernels, extents).latency_s()


def features(
    task: SearchTask, product: Product, kernels: Sequence[MicroKernel], extents: Extents
) -> NDArray[np.float32]:
    """[kernels, shapes, features], of an Estimate."""
    return Estimate(task, product, kernels, extents).features()


class Estimate(Streams):
    """The estimate for several kernels (rows) on several shapes (columns)."""

    def latency_s(self) -> Floats:
        """[kernels, shapes] seconds."""
        return self.terms.total / self.rates.clock_hz

    def features(self) -> NDArray[np.float32]:
        """[kernels, shapes, features]: logarithms of the extents, the kernel's values, and how the terms compare."""
        hardware, terms, m, n, k = self.hardware, self.terms, self.m, self.n, self.depth
        tiles = np.floor(m / self.mr)
        columns: list[Floats] = [
            np.log2(m + 1), np.log2(n + 1), np.log2(k + 1),
            np.log2(terms.total), np.log2(np.maximum(terms.compute, 1.0) / terms.useful), terms.stream / terms.total,
            terms.output / terms.total, terms.packing / terms.total,
            m - tiles * self.mr, (m - tiles * self.mr) / np.maximum(m, 1),
            np.ceil(n / self.nr) * self.nr / np.maximum(n, 1) - 1,
            np.log2(tiles + 1), np.minimum(tiles, self.of["mb"]),
            np.log2(self.panel_bytes / hardware.l2_bytes + 2**-10),
            np.log2(self.block_bytes / hardware.l2_bytes + 2**-10),
            *(value for name, value in self.of.items() if name not in ("group", "panel", "split_k")),
            self.mr * self.nv,
            # Every workload has these, whether its kernels have the axis or not: searches learn from each other.
            np.log2(self.of["group"]), np.log2(self.words.left_bytes), np.log2(self.words.right_bytes),
        ]  # fmt: skip
        return np.stack(np.broadcast_arrays(*columns, terms.total)[:-1], axis=2).astype(np.float32)

    @cached_property
    def terms(self) -> _Terms:
        c = self.rates
        compute, output = self._compute(), self._output()
        stream = self.product.right.stream_cycles(self, self.from_memory())
        packing = self.product.right.packing_cycles(self)
        packing = packing + np.where(self.of["rows"] == 1, self.rows * self.k * c.copy, 0.0)
        if self.by_dots.any():
            compute = np.where(self.by_dots, self._dots(), compute)
        stream, prefetched, exposed = self.supplied(stream)
        busy = _overlapped(compute, stream) + exposed * np.minimum(compute, stream)
        busy = busy + (1 - prefetched) * self.waiting(compute)
        total = self.batch * (busy + output + packing) + c.call + self._together()
        useful = self.batch * self.m * self.n * self.depth / self.lanes / self.fma_per_cycle / self.task.threads
        shape = np.broadcast_shapes(total.shape, useful.shape)
        parts = (compute, stream, output, packing, total, np.maximum(useful, 1.0))
        return _Terms(*(np.broadcast_to(part, shape) for part in parts))

    # -- computing ------------------------------------------------------------------------------------------------
    def _compute(self) -> Floats:
        rest = np.where(self.of["tail"] > 0, self.rest, np.where(self.rest > 0, self.mr, 0.0))
        narrow = np.maximum(self.ragged, 1)
        full = self.tiles * self._tile(self.mr, self.nv) + np.where(rest > 0, self._tile(rest, self.nv), 0.0)
        last = self.tiles * self._tile(self.mr, narrow) + np.where(rest > 0, self._tile(rest, narrow), 0.0)
        blocks = (self.panels + (self.ragged > 0)) * self.blocks * self.chunks * self.rates.block
        few = self.tiles * self._few(self.mr) + np.where(rest > 0, self._few(rest), 0.0)
        few = np.where(self.few > 0, few + self.blocks * self.few * self.k * GATHERED, 0.0)
        return self.panels * full + np.where(self.ragged > 0, last, 0.0) + few + blocks

    def _few(self, rows: Floats) -> Floats:
        """Cycles of the last columns of one tile, by vectors along k (few.py)."""
        c, work = self.rates, rows * self.few
        loads = np.maximum((rows + self.few) / c.loads, rows * self.lanes * self.left_bytes / c.l2_bytes)
        return np.ceil(self.k / self.lanes) * np.maximum(work / self.fma_per_cycle, loads) + work * c.dot + c.tile

    def _dots(self) -> Floats:
        """Tiles whose vectors run along k (dots.py): every sum is added up across its lanes at the end."""
        c, work = self.rates, self.mr * self.nv
        steps = np.ceil(self.k / self.lanes)
        widened = self.mr * self.words.left_widened + self.nv * self.words.right_widened
        issued = work * self.words.issue + widened
        # Rows of a tile that L1 does not hold come from L2 for every few columns.
        rows = np.where(self.tile_bytes > 0.8 * self.hardware.l1d_bytes, self.mr * self.lanes * self.left_bytes, 0.0)
        loads = np.maximum((self.mr + self.nv) / c.loads, rows / c.l2_bytes)
        step = np.maximum(issued / self.fma_per_cycle, loads)
        tiles = (self.tiles + (self.rest > 0)) * np.ceil(np.ceil(self.n / self.nv) / self.of["tn"])
        return np.asarray(tiles * (steps * step + work * c.dot + c.tile))

    def _tile(self, rows: Floats, vectors: Floats) -> Floats:
        """Cycles of one register tile over all of k."""
        c = self.rates
        work = rows * vectors
        every = np.maximum(self.ku, self.of["ahead"])
        prefetches = vectors * (self.of["near"] > 0) + vectors / every * (self.of["ahead"] > 0)
        work = work * self.words.operations
        issued = work * self.words.issue
        widened_rows = np.where(self.of["rows"] > 0, 0.0, rows * self.words.left_widened)
        # A vector that is picked from two takes a load more, and the unit of a multiply-add.
        picked = vectors * self.product.right.picked(self)
        widened = vectors * np.where(self.is_packed, 0.0, self.words.right_widened) + widened_rows + picked
        operations = work + vectors + rows + widened + picked + prefetches + 2.0 / self.ku
        # One by one: to make them one array first takes longer than all the rest for few shapes.
        issue = np.maximum((issued + widened) / self.fma_per_cycle, (vectors + picked + rows) / c.loads)
        step = np.maximum(np.maximum(issue, operations / c.decode), c.fma_latency) + c.turn / self.ku
        if self.words.is_unit.any():
            step = np.where(self.words.is_unit, self._unit_step(rows, vectors), step)
        # A panel that does not stay in L1 comes from L2 for each tile but the first, to which it is streamed.
        l1 = self.hardware.l1d_bytes
        stays = (self.strip_bytes + self.tile_bytes < 0.8 * l1) & ~self.is_crowded(PAGE_BYTES, l1 / PAGE_BYTES)
        # The rate was fitted to tiles whose rows come from L2, too; in a strip they do so once.
        panel, row = vectors * self.lanes * self.right_bytes, rows * self.left_bytes
        kept = (self.nb > 1) & (self.tile_bytes < 0.5 * l1)
        again = np.where(self.is_crowded(self.hardware.l2_bytes / WAYS, WAYS / 2), c.l3_bytes, c.l2_bytes)
        from_l2 = np.where(kept, panel / (panel + row), 1.0) * (1 - 1 / self.passes) * panel / again
        # Rows that push each other out of L1 bring a line from L2 for each of their elements.
        missing = self._missing(rows)
        stays, from_l2 = stays & (missing == 0), from_l2 + missing * rows * LINE_BYTES / c.l2_bytes
        step = np.where(stays, step, np.maximum(step, from_l2) + c.l2_exposed * np.minimum(step, from_l2))
        store = c.store * np.where(self.of["fetch"] > 0, c.fetched, 1.0)
        stores = rows * vectors * (store + c.again * (self.chunks - 1))
        if self.words.is_unit.any():
            stores = stores + np.where(self.words.is_unit, self._drained(rows, vectors), 0.0)
        return np.asarray(self.k * step + self.chunks * c.tile + stores)

    def _unit_step(self, rows: Floats, vectors: Floats) -> Floats:
        """Cycles of a word of k where tiles are multiplied: a multiplication is of several. A tile comes from L1 row by
        row."""
        words, c = self.words, self.rates
        down, across = np.ceil(rows / words.rows), vectors * self.lanes / words.columns
        loads = (down * words.rows + across * words.steps) / c.tile_rows
        return np.asarray((np.maximum(down * across * words.cycles, loads) + c.turn) / words.steps)

    def _drained(self, rows: Floats, vectors: Floats) -> Floats:
        """Cycles in which totals leave a matrix unit at the end of a chunk: whole tiles, whatever of them is valid."""
        down, across = np.ceil(rows / self.words.rows), vectors * self.lanes / self.words.columns
        return np.asarray(self.chunks * down * self.words.rows * across * self.rates.drained)

    def _missing(self, rows: Floats) -> Floats:
        """The share of so many rows of the left operand, read in place, that push each other out of L1."""
        stride = self.product.left.row_stride(self)
        return np.asarray(np.where((self.of["rows"] == 0) & (stride > 0), pushed_out(self.hardware, rows, stride), 0.0))

    def _together(self) -> Floats:
        """Waking threads; and once more for sums over parts of k, which come from other threads' caches."""
        c, results = self.rates, self.products * self.m * np.ceil(self.n / self.lanes) / self.task.threads
        sums = c.fork + results * (self.parts * self.lanes * REGISTER_BYTES / c.l3_bytes + c.store)
        return np.where(self.parts > 1, sums, 0.0) + (c.fork if self.task.threads > 1 else 0.0)

    def _output(self) -> Floats:
        """Stores are part of the tiles; what counts here is that further chunks of k read the output again, and that a
        cold one is read before it is written."""
        c = self.rates
        size = self.rows * self.columns * 4
        again = size / np.where(size < self.hardware.l2_bytes, c.l2_bytes, c.l3_bytes)
        first = size / c.memory_bytes if is_flushed(self.task, is_constant=False) else 0.0
        return np.asarray((self.chunks - 1) * again + first)


def _overlapped(one: Floats, other: Floats) -> Floats:
    """The cycles of two things that go on at once: about those of the longer one."""
    longer = np.maximum(np.maximum(one, other), 1.0)
    return np.asarray(longer * ((one / longer) ** KNEE + (other / longer) ** KNEE) ** (1 / KNEE))
