"""What theory expects of micro-kernels on shapes: the analytic half of the cost model.

The time of a call is about the larger of computing and streaming, and a share of the smaller one that is not hidden,
plus what is done besides:

- computing: cycles of the register tile's inner loop, bound by the multiply-add units, by loads, by the latency of the
  accumulators' dependence chains or by the decoder, for the full tiles, the ragged rest of the rows (padded or exact)
  and the ragged last panel; more where a panel comes from L2 for each tile and not from L1;
- streaming: each panel of the right operand comes from L3 once per block of rows, and the rows of a block again for
  each panel if the block does not stay in L2; prefetching hides more of that behind the computing;
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
from tuner.schedule.loops.estimates import Floats, is_flushed
from tuner.schedule.product.axes import BY_BLOCK, IN_PLACE, MAX_VECTORS, OF_VECTORS
from tuner.schedule.product.product import Product
from tuner.schedule.product.sizes import REGISTER_BYTES, Sizes
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

PAGE_BYTES = 4096
APART = 1.2
"""The time of columns that are read where they lie [k, n] over that of packed ones."""
FOLLOWED, NOT_FOLLOWED = 16, 2.0
"""Streams that a core's prefetchers follow at once, and how many times longer more of them take from memory. Products
of 8192 x 8192 on an AMD EPYC (Zen 4): chunks of 16 steps take half of the time of 32 and more."""
CROWDED = 1.0
"""The additional time of columns a multiple of a page apart, in the narrowest tile; of 768 x 3072 there, one row takes
three times as long in tiles of one vector, and no longer in tiles of six, but 16 rows hide most of that."""
GATHERED = 4.0
"""Cycles of an element that is gathered by itself."""
WAYS = 8
"""Of L2, which few descriptions of hardware say. Half of them are left to a panel."""
KEPT = 0.6
"""The share of L2 that holds the strip at hand and what was asked for of the next one."""
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


class Estimate(Sizes):
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
        stream = self.product.right.stream_cycles(self, self._stream())
        packing = self.product.right.packing_cycles(self)
        packing = packing + np.where(self.of["rows"] == 1, self.rows * self.k * c.copy, 0.0)
        if self.by_dots.any():
            compute = np.where(self.by_dots, self._dots(), compute)
        stream, asked, exposed = self._supplied(stream)
        busy = _overlapped(compute, stream) + exposed * np.minimum(compute, stream)
        busy = busy + (1 - asked) * self._waiting(compute)
        total = self.batch * (busy + output + packing) + c.call + self._together()
        useful = self.batch * self.m * self.n * self.depth / self.lanes / self.fma_per_cycle / self.task.threads
        shape = np.broadcast_shapes(total.shape, useful.shape)
        parts = (compute, stream, output, packing, total, np.maximum(useful, 1.0))
        return _Terms(*(np.broadcast_to(part, shape) for part in parts))

    def _supplied(self, stream: Floats) -> tuple[Floats, Floats, Floats]:
        """The cycles that ``stream`` takes with what is asked for needlessly, the share of a panel that the tiles over
        the one before ask for in time, and the share of the cycles that computing does not hide."""
        c, ahead = self.rates, self.of["ahead"]
        # Of panels a vector wide each tile reads several streams, which prefetchers follow as well as if asked to.
        several, near = (self.of["panel"] == OF_VECTORS) & (self.nv > 1), self.of["near"] > 0
        unaided = np.where(near | several, c.near_exposed, c.stream_exposed)
        reach = self.passes / np.maximum(ahead, 1.0) * (ahead > 0)
        # What L2 does not hold beside the strip at hand is pushed out, and comes again.
        in_time = np.minimum(reach, 1.0)
        is_lost = (1 + in_time) * self.strip_bytes > KEPT * self.hardware.l2_bytes
        # One tile alone waits for its own panel all the time, and what it asks for waits beside.
        asked = np.where(is_lost | (self.passes <= 1), 0.0, in_time)
        early = np.where(self.passes > 1, np.maximum(reach - 1, 0.0), reach**2)
        needless = c.too_soon * early + is_lost * in_time + c.asked * (near & several)
        exposed = unaided + (c.ahead_exposed - unaided) * asked
        return stream * (1 + needless + c.single / np.where(several, self.nv, 1.0)), asked, exposed

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
        """The share of so many rows of the left operand that push each other out of L1: rows that are read in place a
        power of two apart fall on the same sets. All do once there are half as many again as ways. A way of an L1 that
        is looked up by virtual addresses is a page."""
        stride, ways = self.product.left.row_stride(self), self.hardware.l1d_bytes / PAGE_BYTES
        in_set = np.ceil(rows * np.gcd(stride.astype(np.int64), PAGE_BYTES) / PAGE_BYTES)
        share = np.clip(2 * (in_set / ways - 1), 0.0, 1.0)
        return np.asarray(np.where((self.of["rows"] == 0) & (stride > 0), share, 0.0))

    def _together(self) -> Floats:
        """Waking threads; and once more for sums over parts of k, which come from other threads' caches."""
        c, results = self.rates, self.products * self.m * np.ceil(self.n / self.lanes) / self.task.threads
        sums = c.fork + results * (self.parts * self.lanes * REGISTER_BYTES / c.l3_bytes + c.store)
        return np.where(self.parts > 1, sums, 0.0) + (c.fork if self.task.threads > 1 else 0.0)

    # -- memory ---------------------------------------------------------------------------------------------------
    def _stream(self) -> Floats:
        c = self.rates
        cycles = self._panels()
        if not self.product.right.is_packed_ahead:
            cycles = cycles * np.where(self.of["pack"] > 0, 1.0, self._in_place())
        # The rows of a block: once from L3; for every strip if they do not stay in L2 beside two strips.
        left = self.rows * self.k * self.words.left_bytes
        again = self.block_bytes + 2 * self.strip_bytes > 0.8 * self.hardware.l2_bytes
        passes = np.where(again, self.strips + (self.ragged > 0), 1.0)
        if is_flushed(self.task, self.product.left.is_packed_ahead):
            cycles = cycles + np.maximum(left / c.memory_bytes - left / c.l3_bytes, 0.0)
        return np.asarray(cycles + passes * left / c.l3_bytes)

    def _panels(self) -> Floats:
        """Cycles of bringing the panels to all blocks."""
        c, l2, right, columns = self.rates, self.hardware.l2_bytes, self.right_size, self.product.right
        stays = right + self.block_bytes < 0.8 * l2
        # A strip that does not stay in L2 comes again for every tile.
        is_wide = (self.nb > 1) & (self.strip_bytes > 0.8 * l2)
        times = np.where(is_wide, np.maximum(self.tiles, 1), self.blocks)
        # A panel that was packed for a block is in L2.
        rate = np.where(self.of["pack"] == BY_BLOCK, c.l2_bytes, self.below_l2)
        cycles = np.where(stays, right / c.l2_bytes, times * right / rate)
        if is_flushed(self.task, columns.is_packed_ahead) and not columns.is_made_in_call:
            cycles = cycles + np.maximum(right / c.memory_bytes - right / np.where(stays, c.l2_bytes, rate), 0.0)
        return cycles

    def _waiting(self, compute: Floats) -> Floats:
        """Cycles that the first tiles over panels of a constant wait for these: the tiles after them read nothing that
        is new, and bring the next panel only if they ask for it."""
        if not self.product.right.is_packed_ahead or self.product.right.is_made_in_call:
            return np.zeros_like(compute)
        first = compute / self.passes
        waiting = np.minimum(np.maximum(self._panels() - first, 0.0), compute - first)
        return np.where(self.of["pack"] == IN_PLACE, waiting, 0.0)

    @cached_property
    def right_size(self) -> Floats:
        """Bytes of a thread's share of the right operand."""
        return np.asarray(self.columns * self.k * self.right_bytes)

    @cached_property
    def is_held(self) -> NDArray[np.bool_]:
        """Whether a thread's share of L3 holds them. What it does not hold comes from memory every time."""
        return np.asarray(self.right_size < 0.8 * self.hardware.l3_bytes / self.task.threads)

    @cached_property
    def below_l2(self) -> Floats:
        """Bytes in a cycle of what L2 does not hold."""
        c = self.rates
        return np.where(self.is_held, c.l3_bytes, min(c.memory_bytes, c.l3_bytes))

    def in_streams(self, number: Floats) -> Floats:
        """How many times longer what L2 does not hold takes in so many streams, which lie pages apart."""
        return np.where(self.is_held | (number <= FOLLOWED), 1.0, NOT_FOLLOWED)

    @cached_property
    def row_streams(self) -> Floats:
        """Streams that the rows of a chunk are, of an operand that lies [k, n]. Short ones are one."""
        return np.where(self.n * self.words.right_bytes > PAGE_BYTES / 2, self.steps, 1.0)

    def is_crowded(self, way_bytes: float, ways: float) -> NDArray[np.bool_]:
        """Whether so many ways of a cache do not hold the rows of a chunk that are read where they lie [k, n]: those a
        power of two apart fall on the same sets."""
        stride, way = np.asarray(self.n * self.words.right_bytes).astype(np.int64), int(way_bytes)
        in_place = (self.of["pack"] == IN_PLACE) & ~self.by_dots & self.product.right.is_in_rows
        return np.asarray(in_place & (self.steps * np.gcd(stride, way) > ways * way))

    def _in_place(self) -> Floats:
        """How many times longer columns take that are read where they lie than packed ones. Rows that fall on the same
        sets of L1 push out what was prefetched of one another."""
        is_crowded = self.is_crowded(PAGE_BYTES, 2 * self.hardware.l1d_bytes / PAGE_BYTES)
        narrow = np.maximum(1 - self.nv / MAX_VECTORS, 0.0)
        along_n = APART * self.in_streams(self.row_streams) * np.where(is_crowded, 1 + CROWDED * narrow, 1.0)
        return np.asarray(np.where(self.by_dots, 1 + self.rates.single / self.nv, along_n))

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
