"""The theory of chains of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule.access import is_transcendental
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.product.estimate import Estimate
from tuner.schedule.product.sizes import BYTES
from tuner.schedule.rule import Extents
from tuner.schedule.rules.mlp.chain import chain_of
from tuner.schedule.space import MicroKernel

LATER = frozenset({"panel", "group"})
"""Axes that not every kernel has."""


class ChainEstimate:
    """The products' estimates as if each stood alone, and what differs where they do not. Sizes are [1, shapes], a
    kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.hardware, self.kernels = task, task.known_target.hardware, kernels
        self.chain = chain_of(task.workload)
        own = zip(*(self.chain.kernels(kernel, self.hardware) for kernel in kernels), strict=True)
        each = [Estimate(task, product, of, extents) for product, of in zip(self.chain.products, own, strict=True)]
        self.first, self.second = each[-2:]
        self.products = [of.latency_s() for of in each]
        self.whole = np.array([[float(kernel["whole"])] for kernel in kernels])
        self.rows, self.f = np.ceil(self.second.m / task.threads), self.second.k * self.second.words.group
        # Bytes of the intermediates that are kept at a time, by one thread.
        block, columns = np.minimum(self.second.mr * self.second.of["mb"], self.rows), self.second.of["kc"]
        columns, element = columns * self.second.words.group, BYTES[self.chain.second.left.dtype]
        columns = np.where(columns > 0, np.minimum(columns, self.f), self.f)
        kept = np.where(self.whole > 0, self.rows * self.f, block * columns)
        self.kept = len(self.chain.firsts) * kept * element
        # Cycles in which they are written and read again. The second product's own theory has its rows come from L3.
        rates, l2, l3 = task.rates, self.hardware.l2_bytes, self.hardware.l3_bytes / max(task.threads, 1)
        in_l3 = np.where(self.kept < 0.6 * l3, rates.l3_bytes, rates.memory_bytes)
        rate, size = np.where(self.kept < 0.6 * l2, rates.l2_bytes, in_l3), self.rows * self.f * element
        self.moved = 2 * len(self.chain.firsts) * size / rate - size / rates.l3_bytes

    def latency_s(self) -> Floats:
        """[kernels, shapes] seconds."""
        # Each product's theory has its own call, and its own waking of the threads: here once, or twice if whole.
        rates, further = self.task.rates, len(self.chain.firsts)
        wakes = (further - self.whole) * (rates.fork if self.task.threads > 1 else 0.0)
        # Of a vector in the stages behind the first products, and behind the second one.
        inner, outer = (
            sum(rates.function if is_transcendental(stage.body) else rates.operation for stage in each.result.epilogue)
            for each in (self.chain.firsts[-1], self.chain.second)
        )
        elementwise = self.rows * (self.f * inner + self.second.n * outer) / self.hardware.lanes()
        cycles = self.moved + elementwise - rates.call * further - wakes
        return np.asarray(np.maximum(sum(self.products) + cycles / rates.clock_hz, 1e-9))

    def features(self) -> NDArray[np.float32]:
        """[kernels, shapes, features]: extents, how rows and panels are cut, what is kept, values, the estimate."""
        latency, first, second, level = self.latency_s(), self.first, self.second, self.hardware
        sizes = [np.log2(each + 1.0) for each in (second.m, second.n, self.f, first.k)]
        cut = [second.m % second.mr, second.m % (second.mr * second.of["mb"])]
        cut += [-self.f % first.nr / first.nr, -second.n % second.nr / second.nr]
        kept = [np.log2(self.kept / size + 2.0**-10) for size in (level.l1d_bytes, level.l2_bytes)]
        parts = [self.products[-1] / latency, self.moved / self.task.rates.clock_hz / latency]
        # Of a word, where steps are of several elements.
        fixed = [len(self.chain.firsts), *(of.words.right_bytes for of in (first, second))]
        # Values that every kernel has: how wide panels are is no such one, nor are instructions.
        bare = [replace(each, values=tuple(own for own in each.values if own[0] not in LATER)) for each in self.kernels]
        return feature_table([*sizes, *cut, *kept, *parts, *map(np.asarray, fixed)], bare, latency)
