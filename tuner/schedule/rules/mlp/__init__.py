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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import is_transcendental
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.product.axes import HEIGHTS, default_tile, thread_axes, tile_axes
from tuner.schedule.product.axes import check as check_product
from tuner.schedule.product.estimate import BYTES, Estimate
from tuner.schedule.product.product import TOTAL_BYTES, can_hold_partial
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.mlp.chain import chain_of, kept_width, match, whole_rows
from tuner.schedule.rules.mlp.emit import emit
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_ROWS = 512
"""In a block whose intermediate is kept."""
MAX_PANEL = 6
BLOCKS = (128, 256, 384, 512, 768, 1024)
"""Choices of ``fb``, beside 0."""


class Mlp(Rule):
    """See the module's text for the axes."""

    name = "x86_chain"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        chain = match(workload)
        return chain if isinstance(chain, NoMatch) else chain.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """The larger of both forms, and room for weights that are packed at the call."""
        chain, lanes = chain_of(task.workload), task.known_target.hardware.lanes()
        rows = task.workload.axis_sizes(task.largest_dims)[chain.second.axes["m"]]
        products, height = len(chain.firsts), HEIGHTS[-1]
        width = kept_width(chain.second.depth or 0, lanes)
        blocks = task.threads * min(MAX_ROWS + height, rows + height)
        whole = min(whole_rows(products, width, height), rows) + height
        kept, packed = products * width * max(blocks, whole), 0
        for product in chain.products:
            if not product.right.is_packed_ahead:
                n, k = (task.workload.sizes[product.axes[axis]].constant or 0 for axis in "nk")
                packed += (n + MAX_PANEL * lanes) * (k + lanes)
        return TOTAL_BYTES * (kept + packed)

    def space(self, task: SearchTask) -> SearchSpace:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        # Where there are several k, the longest one.
        tile = {axis.name: axis for axis in tile_axes(max(first.depth or 0 for first in chain.firsts))}
        width = chain.second.depth if can_hold_partial(chain.second.result.dtype) else 0
        columns = tuple(fb for fb in BLOCKS if fb < (width or 0))
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

        def check(kernel: MicroKernel) -> None:
            _check_order(kernel)
            for product, own in zip(chain.products, chain.kernels(kernel), strict=True):
                check_product(own, product, product.atoms(hardware), task.threads, hardware)

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
        return _Estimate(task, kernels, extents).features()

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


def _canonicalised(values: Mapping[str, int]) -> dict[str, int]:
    """The values with one choice for axes that are don't-care beside the others."""
    tail, threads = values["tail"] if values["mr"] > 1 else 0, values["tn"] if values["whole"] else 1
    return {**values, "tail": tail, "tn": threads}


def _check_order(kernel: MicroKernel) -> None:
    """Raises IllegalKernel for blocks of too many rows, and for threads that do not share these alone."""
    rows = kernel["mb"] * kernel["mr"]
    if not kernel["whole"] and rows > MAX_ROWS:
        raise IllegalKernel(f"mb={kernel['mb']} mr={kernel['mr']} keep {rows} rows, limit {MAX_ROWS}")
    if not kernel["whole"] and kernel["tn"] != 1:
        raise IllegalKernel(f"whole=0 has threads share the rows: needs tn=1, got {kernel['tn']}")


class _Estimate:
    """The estimates of the products, each as if it stood alone, and what is different where they do not. Sizes are
    [1, shapes], a kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.hardware, self.kernels = task, task.known_target.hardware, kernels
        self.chain = chain_of(task.workload)
        own = zip(*(self.chain.kernels(kernel) for kernel in kernels), strict=True)
        each = [Estimate(task, product, of, extents) for product, of in zip(self.chain.products, own, strict=True)]
        self.first, self.second = each[-2:]
        self.products = [of.terms().total / task.rates.clock_hz for of in each]
        self.whole = np.array([[float(kernel["whole"])] for kernel in kernels])
        self.rows, self.f = np.ceil(self.second.m / task.threads), self.second.k
        self.kept = self._kept()
        self.moved = self._moved()

    def latency_s(self) -> Floats:
        """[kernels, shapes] seconds."""
        # Each product's theory has its own call, and its own waking of the threads: here once, or twice if whole.
        rates, further = self.task.rates, len(self.chain.firsts)
        wakes = (further - self.whole) * (rates.fork if self.task.threads > 1 else 0.0)
        cycles = self.moved + self._elementwise() - rates.call * further - wakes
        return np.asarray(np.maximum(sum(self.products) + cycles / rates.clock_hz, 1e-9))

    def features(self) -> NDArray[np.float32]:
        """[kernels, shapes, features]: extents, how rows and panels are cut, what is kept, values, the estimate."""
        latency, first, second, level = self.latency_s(), self.first, self.second, self.hardware
        sizes = [np.log2(np.broadcast_to(each, latency.shape) + 1.0) for each in (second.m, second.n, self.f, first.k)]
        cut = [second.m % second.mr, second.m % (second.mr * second.of["mb"])]
        cut += [-self.f % first.nr / first.nr, -second.n % second.nr / second.nr]
        kept = [np.log2(self.kept / size + 2.0**-10) for size in (level.l1d_bytes, level.l2_bytes)]
        parts = [self.products[-1] / latency, self.moved / self.task.rates.clock_hz / latency]
        fixed = [len(self.chain.firsts), *(BYTES[of.product.right.dtype] for of in (first, second))]
        constants = [np.full((1, 1), float(value)) for value in fixed]
        return feature_table([*sizes, *cut, *kept, *parts, *constants], self.kernels, latency)

    def _kept(self) -> Floats:
        """Bytes of the intermediates that are kept at a time, by one thread."""
        block, columns = np.minimum(self.second.mr * self.second.of["mb"], self.rows), self.second.of["kc"]
        columns = np.where(columns > 0, np.minimum(columns, self.f), self.f)
        kept = np.where(self.whole > 0, self.rows * self.f, block * columns)
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
        return np.asarray(self.rows * (self.f * inner + self.second.n * outer) / lanes)
