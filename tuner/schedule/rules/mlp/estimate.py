"""What theory expects of a chain: its products by the theory of x86_contraction, and the bytes of the intermediate.

Each product streams its weights once for each block of rows. Each element of the intermediate is written and read once,
to and from the first level of cache that holds what is kept at a time (as in Chimera, Zheng et al., HPCA 2023): a block
of rows, or all of them, by the columns that are computed before the second product takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.task import SearchTask
from tuner.schedule.access import is_transcendental
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.product import estimate
from tuner.schedule.rule import Extents
from tuner.schedule.rules.mlp.pattern import chain_of
from tuner.schedule.rules.mlp.sizes import ELEMENT_BYTES, link_kernels
from tuner.schedule.space import MicroKernel


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    return _Estimate(task, kernels, extents).latency_s()


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: extents, how rows and panels are cut, what is kept, values, the estimate."""
    of = _Estimate(task, kernels, extents)
    latency = of.latency_s()
    sizes = [np.log2(np.broadcast_to(each, latency.shape) + 1.0) for each in (of.m, of.n, of.f, of.k)]
    cut = [of.m % of.mr, of.m % (of.mr * of.of["mb"]), -of.f % of.nr / of.nr, -of.n % of.er / of.er]
    kept = [np.log2(of.kept / level + 2.0**-10) for level in (of.hardware.l1d_bytes, of.hardware.l2_bytes)]
    parts = [of.products[-1] / latency, of.moved / task.rates.clock_hz / latency]
    count = np.full((1, 1), float(len(of.chain.firsts)))
    dtypes = (of.chain.firsts[-1].right_dtype, of.chain.second.right_dtype)
    widths = [np.full((1, 1), float(DTYPES[dtype].bytes)) for dtype in dtypes]
    return feature_table([*sizes, *cut, *kept, *parts, count, *widths], kernels, latency)


class _Estimate:
    """Sizes are [1, shapes], a kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.chain, self.hardware = task, chain_of(task.workload), task.known_target.hardware
        values = np.array([[value for _, value in kernel.values] for kernel in kernels], np.float64)
        self.of = {name: values[:, index : index + 1] for index, (name, _) in enumerate(kernels[0].values)}
        self.mr = self.of["mr"]
        self.nr, self.er = (self.of[name] * self.hardware.lanes() for name in ("nv", "ev"))
        second, first = self.chain.products[-1].by_role(extents), self.chain.products[-2].by_role(extents)
        self.m, self.n, self.f = (np.asarray(second[axis], np.float64)[None, :] for axis in "mnk")
        self.k = np.asarray(first["k"], np.float64)[None, :]
        self.rows = np.ceil(self.m / task.threads)
        self.kept = self._kept()
        self.products = self._products(kernels, extents)
        self.moved = self._moved()

    def latency_s(self) -> Floats:
        # Each product's theory has its own call, and its own waking of the threads: here once, or twice if whole.
        rates, further = self.task.rates, len(self.chain.links) - 1
        wakes = (further - self.of["whole"]) * (rates.fork if self.task.threads > 1 else 0.0)
        cycles = self.moved + self._elementwise() - rates.call * further - wakes
        return np.asarray(np.maximum(sum(self.products) + cycles / rates.clock_hz, 1e-9))

    def _products(self, kernels: Sequence[MicroKernel], extents: Extents) -> list[Floats]:
        """[kernels, shapes] seconds of each product as if it stood alone."""
        own = [list(link_kernels(self.chain, kernel)) for kernel in kernels]
        return [
            estimate.latency_s(self.task, product, [each[index] for each in own], extents)
            for index, product in enumerate(self.chain.products)
        ]

    def _kept(self) -> Floats:
        """Bytes of the intermediates that are kept at a time, by one thread."""
        block = np.minimum(self.mr * self.of["mb"], self.rows)
        columns = np.where(self.of["fb"] > 0, np.minimum(self.of["fb"], self.f), self.f)
        kept = np.where(self.of["whole"] > 0, self.rows * self.f, block * columns)
        return np.asarray(len(self.chain.firsts) * kept * ELEMENT_BYTES)

    def _moved(self) -> Floats:
        """Cycles in which the intermediates are written and read again."""
        rates, l2, l3 = self.task.rates, self.hardware.l2_bytes, self.hardware.l3_bytes / max(self.task.threads, 1)
        in_l3 = np.where(self.kept < 0.6 * l3, rates.l3_bytes, rates.memory_bytes)
        rate = np.where(self.kept < 0.6 * l2, rates.l2_bytes, in_l3)
        size = self.rows * self.f * ELEMENT_BYTES
        # The second product's own theory has its rows come from L3.
        return np.asarray(2 * len(self.chain.firsts) * size / rate - size / rates.l3_bytes)

    def _elementwise(self) -> Floats:
        """Cycles of the stages behind the first products and behind the second one."""
        rates, lanes = self.task.rates, self.hardware.lanes()
        inner, outer = (
            sum(rates.function if is_transcendental(stage.body) else rates.operation for stage in link.epilogue)
            for link in (self.chain.firsts[-1], self.chain.second)
        )
        return np.asarray(self.rows * (self.f * inner + self.n * outer) / lanes)
