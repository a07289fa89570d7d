"""How the operands of a product come to a core: what each level of memory delivers, in how many streams, and what
is prefetched. A part of the estimate (estimate.py).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.schedule.loops.estimates import PAGE_BYTES, Floats, is_flushed
from tuner.schedule.product.axes import BY_BLOCK, IN_PLACE, MAX_VECTORS, WIDE
from tuner.schedule.product.sizes import Sizes

APART = 1.2
"""The time of columns that are read where they lie [k, n] over that of packed ones."""
FOLLOWED, NOT_FOLLOWED = 16, 2.0
"""Streams that a core's prefetchers follow at once, and how many times longer more of them take from memory. Products
of 8192 x 8192 on an AMD EPYC (Zen 4): chunks of 16 steps take half of the time of 32 and more."""
CROWDED = 1.0
"""The additional time of columns a multiple of a page apart, in the narrowest tile; of 768 x 3072 there, one row takes
three times as long in tiles of one vector, and no longer in tiles of six, but 16 rows hide most of that."""
WAYS = 8
"""Of L2, which few descriptions of hardware say. Half of them are left to a panel."""
STREAM_START = 5000.0
"""Bytes of a stream that would come from memory until prefetchers follow it, on an AMD EPYC (Zen 4) with huge pages, in
which libraries keep what they have packed: each panel of several streams is one, and a single one goes on."""
PREFETCHED_OF_L2 = 0.6
"""The share of L2 that holds a strip of panels and what was prefetched of the next one; chosen, not fitted."""


class Streams(Sizes):
    """What streams take, for several kernels (rows) at several shapes (columns)."""

    def from_memory(self) -> Floats:
        """Cycles of bringing both operands, the panels as they are packed."""
        c = self.rates
        cycles = self.panel_cycles
        if not self.product.right.is_packed_ahead:
            cycles = cycles * np.where(self.of["pack"] > 0, 1.0, self._in_place())
        # The rows of a block: once from L3; for every strip if they do not stay in L2 beside two strips.
        left = self.rows * self.k * self.words.left_bytes
        again = self.block_bytes + 2 * self.strip_bytes > 0.8 * self.hardware.l2_bytes
        passes = np.where(again, self.strips + (self.ragged > 0), 1.0)
        if is_flushed(self.task, self.product.left.is_packed_ahead):
            first = np.maximum(left / c.memory_bytes - left / c.l3_bytes, 0.0)
            cycles = cycles + first * self.product.left.first_share(self)
        return np.asarray(cycles + passes * left / c.l3_bytes)

    @cached_property
    def panel_cycles(self) -> Floats:
        """Cycles of bringing the panels to all blocks."""
        c, l2, right, columns = self.rates, self.hardware.l2_bytes, self.right_size, self.product.right
        # A strip that does not stay in L2 comes again for every tile.
        is_wide = (self.nb > 1) & (self.strip_bytes > 0.8 * l2)
        times = np.where(is_wide, np.maximum(self.tiles, 1), self.blocks)
        # A panel that was packed for a block is in L2.
        rate = np.where(self.of["pack"] == BY_BLOCK, c.l2_bytes, self.below_l2)
        cycles = np.where(self.stays, right / c.l2_bytes, times * right / rate)
        if is_flushed(self.task, columns.is_packed_ahead) and not columns.is_made_in_call:
            cycles = cycles + np.maximum(right / c.memory_bytes - right / np.where(self.stays, c.l2_bytes, rate), 0.0)
        return cycles

    def waiting(self, compute: Floats) -> Floats:
        """Cycles that the first tile over each panel of a constant waits for it, if nothing was prefetched: later tiles
        over the panel read it from L2."""
        if not self.product.right.is_packed_ahead or self.product.right.is_made_in_call:
            return np.zeros_like(compute)
        first = compute / self.passes
        waiting = np.minimum(np.maximum(self.panel_cycles - first, 0.0), compute - first)
        is_near = self.stays & (not is_flushed(self.task, is_constant=True))
        return np.where((self.of["pack"] == IN_PLACE) & ~is_near, waiting, 0.0)

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """Whether the panels stay in L2 beside a block of rows."""
        return np.asarray(self.right_size + self.block_bytes < 0.8 * self.hardware.l2_bytes)

    def supplied(self, stream: Floats) -> tuple[Floats, Floats, Floats]:
        """The cycles that ``stream`` takes with needless prefetches, the share of a panel that the tiles over the one
        before prefetch in time, and the share of the cycles that computing does not hide."""
        c, ahead = self.rates, self.of["ahead"]
        # Hardware prefetchers follow the several streams of narrow panels, and a steady one, as well as software
        # prefetches would.
        several, near = (self.of["panel"] != WIDE) & (self.nv > 1), self.of["near"] > 0
        is_followed = several | self._is_steady
        unaided = np.where(near | is_followed, c.near_exposed, c.stream_exposed)
        # How many panels the tiles over one panel prefetch.
        panels = self.passes / np.maximum(ahead, 1.0) * (ahead > 0)
        share = np.minimum(panels, 1.0)
        # What L2 does not hold beside the current strip is evicted, and loaded again.
        is_evicted = (1 + share) * self.strip_bytes > PREFETCHED_OF_L2 * self.hardware.l2_bytes
        # A single tile waits for its own panel all the time, and its prefetches compete with that.
        prefetched = np.where(is_evicted | (self.passes <= 1), 0.0, share)
        too_soon = np.where(self.passes > 1, np.maximum(panels - 1, 0.0), panels**2)
        needless = c.too_soon * too_soon + is_evicted * share + c.asked * (near & is_followed)
        exposed = unaided + (c.ahead_exposed - unaided) * prefetched
        return stream * (1 + needless + self._restarts(several)), prefetched, exposed

    @cached_property
    def _is_steady(self) -> NDArray[np.bool_]:
        """Whether panels come as a single stream that no tile interrupts: each is read once, and the next lies behind
        it. A core follows it as it follows several; not beside more than two rows where a row of it is one vector."""
        if not self._is_streamed:
            return np.zeros(self.passes.shape, np.bool_)
        wide = (self.of["panel"] == WIDE) & ((self.nv > 1) | (np.minimum(self.m, self.mr) <= 2))
        return np.asarray(wide & (self.passes <= 1) & (self.of["pack"] == IN_PLACE) & ~self.by_dots)

    @property
    def _is_streamed(self) -> bool:
        """Whether panels come from memory at each call, from where they were packed ahead as they are multiplied."""
        columns = self.product.right
        is_ready = columns.is_packed_ahead and columns.is_read_as_stored and not columns.is_made_in_call
        return is_ready and is_flushed(self.task, is_constant=True)

    def _restarts(self, several: NDArray[np.bool_]) -> Floats:
        """What is added to a stream for each one that begins, as a share."""
        single = self.rates.single / np.where(several, self.nv, 1.0)
        if not self._is_streamed:
            return np.asarray(single)
        panel_bytes = self.k * self.words.right_bytes * self.lanes
        alone = np.where(self._is_steady, self.rates.steady, single)
        return np.asarray(np.where(several, STREAM_START / panel_bytes, alone))

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
