"""The rule for chains of products on vector units: feed-forward layers, gated ones too (chain.py).

Both products run by the engine's loops and register tile, from packed weights. What lies between them,
the intermediate, is kept for a block of rows, or for all rows: fused or not is a choice of the search. Axes that other
products do not have, or that mean something else here:

=========  ====================================================================================================
``nv``     vectors in a row of the register tile of the first products; ``nv * lanes`` columns are a panel
``ev``     vectors in a row of the register tile of the second product
``whole``  0: the intermediate of a block of ``mb`` tiles of rows is kept, and threads share the rows; 1: that of all
           rows, first product by first product, then the second one
``mb``     tiles of rows that share a panel of either product, and whose intermediate is kept
``fb``     columns of the intermediate, rounded up to panels, that are computed before the second product takes them;
           with ``whole``, the steps of its sum that a block of rows goes through at a time; 0: all
``kc``     steps of the first sums that a block of rows goes through at a time
``rows``   1: the rows of the first products are packed before they are used
``fetch``  1: lines of the output are prefetched before a tile of the second product is computed
``tn``     threads along the columns of either product; with ``whole`` alone
=========  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.dtypes import DTYPES
from tuner.program.target import Hardware, Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import is_transcendental
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import HEIGHTS, default_tile, thread_axes, tile_axes
from tuner.schedule.product.axes import check as check_product
from tuner.schedule.product.product import TOTAL_BYTES, can_hold_partial
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.mlp.chain import Chain, chain_of, kept_width, match, whole_rows
from tuner.schedule.rules.mlp.emit import emit
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_ROWS = 512
"""In a block whose intermediate is kept."""
MAX_PANEL = 6
BLOCKS = (128, 256, 384, 512, 768, 1024)
"""Choices of ``fb``, beside 0."""


class X86Chain(Rule):
    """See the module's text for the axes."""

    name = "x86_chain"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        chain = match(workload)
        return chain if isinstance(chain, NoMatch) else chain.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """The larger of both forms, and room for weights that are packed at the call."""
        chain, lanes = chain_of(task.workload), task.known_target.hardware.lanes()
        size, rows = chain.sizes(task.workload), task.workload.axis_sizes(task.largest_dims)[chain.second.axes["m"]]
        products, height = len(chain.firsts), HEIGHTS[-1]
        width = kept_width(size["f"], lanes)
        blocks = task.threads * min(MAX_ROWS + height, rows + height)
        whole = min(whole_rows(products, width, height), rows) + height
        return TOTAL_BYTES * (products * width * max(blocks, whole) + _packed_elements(task, chain))

    def space(self, task: SearchTask) -> SearchSpace:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        size = chain.sizes(task.workload)
        tile = {axis.name: axis for axis in tile_axes(size["k"])}
        columns = tuple(fb for fb in BLOCKS if fb < size["f"]) if can_hold_partial(chain.second.result.dtype) else ()
        axes = (
            tile["mr"],
            Axis("nv", "vectors in a row of the first register tile", tile["nv"].choices),
            Axis("ev", "vectors in a row of the second register tile", tile["nv"].choices),
            Axis("whole", "the intermediate of all rows is kept", (0, 1)),
            Axis("mb", "tiles that share a panel, and are kept", tile["mb"].choices),
            Axis("fb", "columns of the intermediate at a time", (0, *columns)),
            *(tile[name] for name in ("kc", "ku", "near", "ahead")),
            Axis("rows", "rows are packed at each call", (0, 1)),
            tile["fetch"],
            Axis("tail", "ragged rows have exact code", (0, 1)),
            thread_axes(task.threads, False)[1],
        )
        check = partial(_check, chain=chain, threads=task.threads, hardware=hardware)
        return SearchSpace(self.name, self.version, axes, check, _canonicalised)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers; several threads share columns too, where rows are few."""
        tile = default_tile(task.known_target.hardware)
        values = {**tile, "ev": tile["nv"], "whole": int(task.threads > 1), "mb": 8, "fb": 0, "kc": 0, "ku": 1}
        values |= {"near": 0, "ahead": 0, "rows": 0, "fetch": 0, "tail": 0, "tn": task.threads}
        return self.space(task).kernel(values)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return _Estimate(task, kernels, extents).latency_s()

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return _Estimate(task, kernels, extents).features(kernels)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        chain, lanes = chain_of(task.workload), task.known_target.hardware.lanes()
        layouts = {}
        for right in (product.right for product in chain.products if product.right.is_packed_ahead):
            dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[right.tensor].dims)
            rows, steps = ((1,), (0,)) if right.lies_along_n else ((0,), (1,))
            panel = kernel["ev" if right is chain.second.right else "nv"] * lanes
            layouts[right.tensor] = PackLayout(panel, dims=dims, rows=rows, steps=steps)
        return layouts

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, self.layouts(task, kernel), name)


def _packed_elements(task: SearchTask, chain: Chain) -> int:
    """The most that weights which are new at every call take as panels."""
    lanes, total = task.known_target.hardware.lanes(), 0
    for product in chain.products:
        if not product.right.is_packed_ahead:
            n, k = (task.workload.sizes[product.axes[axis]].constant or 0 for axis in "nk")
            total += (n + MAX_PANEL * lanes) * (k + lanes)
    return total


def _canonicalised(values: Mapping[str, int]) -> dict[str, int]:
    """The values with one choice for axes that are don't-care beside the others."""
    canonical = dict(values)
    if values["mr"] == 1:
        canonical["tail"] = 0
    if not values["whole"]:
        canonical["tn"] = 1
    return canonical


def _check(kernel: MicroKernel, chain: Chain, threads: int, hardware: Hardware) -> None:
    """Raises IllegalKernel for what the hardware cannot carry."""
    if not kernel["whole"] and kernel["mb"] * kernel["mr"] > MAX_ROWS:
        rows = kernel["mb"] * kernel["mr"]
        raise IllegalKernel(f"mb={kernel['mb']} mr={kernel['mr']} keep {rows} rows, limit {MAX_ROWS}")
    if not kernel["whole"] and kernel["tn"] != 1:
        raise IllegalKernel(f"whole=0 has threads share the rows: needs tn=1, got {kernel['tn']}")
    for product, own in zip(chain.products, chain.kernels(kernel), strict=True):
        check_product(own, product, product.atoms(hardware), threads, hardware)


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
        rates, further = self.task.rates, len(self.chain.firsts)
        wakes = (further - self.of["whole"]) * (rates.fork if self.task.threads > 1 else 0.0)
        cycles = self.moved + self._elementwise() - rates.call * further - wakes
        return np.asarray(np.maximum(sum(self.products) + cycles / rates.clock_hz, 1e-9))

    def features(self, kernels: Sequence[MicroKernel]) -> NDArray[np.float32]:
        """[kernels, shapes, features]: extents, how rows and panels are cut, what is kept, values, the estimate."""
        latency, chain, hardware = self.latency_s(), self.chain, self.hardware
        sizes = [np.log2(np.broadcast_to(each, latency.shape) + 1.0) for each in (self.m, self.n, self.f, self.k)]
        cut = [self.m % self.mr, self.m % (self.mr * self.of["mb"])]
        cut += [-self.f % self.nr / self.nr, -self.n % self.er / self.er]
        kept = [np.log2(self.kept / level + 2.0**-10) for level in (hardware.l1d_bytes, hardware.l2_bytes)]
        parts = [self.products[-1] / latency, self.moved / self.task.rates.clock_hz / latency]
        rights = (chain.firsts[-1].right, chain.second.right)
        fixed = [len(chain.firsts), *(DTYPES[right.dtype].bytes for right in rights)]
        constant = [np.full((1, 1), float(value)) for value in fixed]
        return feature_table([*sizes, *cut, *kept, *parts, *constant], kernels, latency)

    def _products(self, kernels: Sequence[MicroKernel], extents: Extents) -> list[Floats]:
        """[kernels, shapes] seconds of each product as if it stood alone."""
        own = [list(self.chain.kernels(kernel)) for kernel in kernels]
        return [
            estimate.latency_s(self.task, product, [each[index] for each in own], extents)
            for index, product in enumerate(self.chain.products)
        ]

    def _kept(self) -> Floats:
        """Bytes of the intermediates that are kept at a time, by one thread."""
        block = np.minimum(self.mr * self.of["mb"], self.rows)
        columns = np.where(self.of["fb"] > 0, np.minimum(self.of["fb"], self.f), self.f)
        kept = np.where(self.of["whole"] > 0, self.rows * self.f, block * columns)
        return np.asarray(len(self.chain.firsts) * kept * TOTAL_BYTES)

    def _moved(self) -> Floats:
        """Cycles in which the intermediates are written and read again."""
        rates, l2, l3 = self.task.rates, self.hardware.l2_bytes, self.hardware.l3_bytes / max(self.task.threads, 1)
        in_l3 = np.where(self.kept < 0.6 * l3, rates.l3_bytes, rates.memory_bytes)
        rate = np.where(self.kept < 0.6 * l2, rates.l2_bytes, in_l3)
        size = self.rows * self.f * TOTAL_BYTES
        # The second product's own theory has its rows come from L3.
        return np.asarray(2 * len(self.chain.firsts) * size / rate - size / rates.l3_bytes)

    def _elementwise(self) -> Floats:
        """Cycles of the stages behind the first products and behind the second one."""
        rates, lanes = self.task.rates, self.hardware.lanes()
        inner, outer = (
            sum(rates.function if is_transcendental(stage.body) else rates.operation for stage in each.result.epilogue)
            for each in (self.chain.firsts[-1], self.chain.second)
        )
        return np.asarray(self.rows * (self.f * inner + self.n * outer) / lanes)
