"""Rules whose programs are one product and nothing besides: the engine's space, theory and code are theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout, MatrixLayout, PanelLayout
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import (
    AT_ONCE,
    BY_BLOCK,
    IN_PLACE,
    ROWS_IN_PLACE,
    ROWS_PACKED,
    canonicalised,
    check,
    default_values,
    ragged_axes,
    thread_axes,
    tile_axes,
)
from tuner.schedule.product.context import context_of
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.operands.matrix import MatrixColumns
from tuner.schedule.product.product import Product, holds_partial
from tuner.schedule.rule import Extents, Rule
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.vector.dot_products import imported


class ProductRule(Rule):
    """A rule for the programs that ``product`` takes, one element of k a step. Its micro-kernels have the axes of the
    engine, of which ``rows`` has these choices."""

    rows: Sequence[int] = (ROWS_IN_PLACE, ROWS_PACKED)

    @abstractmethod
    def product(self, workload: Workload) -> Product:
        """The product that a workload is. Raises ValueError for a workload that the rule does not take."""

    def space(self, task: SearchTask) -> SearchSpace:
        product, hardware = self.product(task.workload), task.known_target.hardware
        packings = (IN_PLACE,) if product.right.is_packed_ahead else (IN_PLACE, BY_BLOCK, AT_ONCE)
        axes = (
            *tile_axes(product.depth if holds_partial(product.result.dtype) else 0),
            Axis("rows", "rows are packed at each call", tuple(self.rows)),
            *ragged_axes("n" in product.dynamic),
            Axis("pack", "panels are packed at each call", packings),
            *thread_axes(task.threads, product.has_batch),
        )
        return SearchSpace(
            self.name,
            self.version,
            axes,
            check=lambda kernel: check(kernel, product, task.threads, hardware),
            canonicalise=lambda values: canonicalised(values, product),
        )

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        product = self.product(task.workload)
        return self.space(task).kernel(default_values(task, product.has_batch, rows=self.rows[0]))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, self.product(task.workload), kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, self.product(task.workload), kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        right = self.product(task.workload).right
        if not (isinstance(right, MatrixColumns) and right.is_packed_ahead):
            return {}
        panel = kernel["nv"] * task.known_target.hardware.lanes()
        if not right.lies_along_n:
            return {right.tensor: PanelLayout(panel)}
        dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[right.tensor].dims)
        return {right.tensor: MatrixLayout(dims, batch=(), rows=(1,), steps=(0,), panel=panel)}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        product = self.product(task.workload)
        with kernel_function(task.workload, self.layouts(task, kernel), name) as function:
            context = context_of(task, product, kernel, function)
            with imported(context.words.dot):
                Nest(context).body()
        return function.get()
