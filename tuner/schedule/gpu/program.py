"""A workload by its segments, with what theory and the space ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from tuner.program.language.workload import Workload
from tuner.program.target.cuda import Gpu
from tuner.schedule.gpu.costs import Attention, Rows, Stages
from tuner.schedule.gpu.plan import Choices, Found, segments
from tuner.schedule.gpu.pricing import Priced
from tuner.schedule.gpu.product_costs import Product, Products
from tuner.schedule.gpu.work import Floats
from tuner.schedule.rule import Extents

PRICED: Mapping[str, Callable[[Found], Priced]] = {
    each.kind: each for each in (Products, Attention, Rows, Stages)
}  # fmt: skip


class GpuProgram:
    """The segments of a workload. What symbols are at a shape is read from the extents of axes."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.segments = [PRICED[found.kind](found) for found in segments(workload)]
        self.kinds = frozenset(each.kind for each in self.segments)
        sizes = {axis: str(workload.sizes[axis]) for axis in workload.program.axes}
        self._axis_of = {size: axis for axis, size in sizes.items() if size in workload.symbols}

    @property
    def products(self) -> list[Product]:
        return [product for each in self.segments if isinstance(each, Products) for product in each.products]

    @property
    def attentions(self) -> list[Attention]:
        return [each for each in self.segments if isinstance(each, Attention)]

    def seconds(self, gpu: Gpu, choices: Sequence[Choices], extents: Extents, is_flushed: bool) -> dict[str, Floats]:
        """[kernels, shapes] by kind of segment."""
        shape = len(choices), len(next(iter(extents.values()))) if extents else 1
        dims = {name: np.asarray(extents[axis], np.float64) for name, axis in self._axis_of.items()}
        total = dict[str, Floats]()
        for each in self.segments:
            seconds = np.broadcast_to(each.seconds(gpu, choices, dims, extents, is_flushed), shape)
            total[each.kind] = total.get(each.kind, np.zeros(shape)) + seconds
        return total

    def needs(self, choices: Choices, gpu: Gpu) -> str | None:
        """What a kernel needs and the hardware does not have; None where it is expected to fit."""
        return next((need for each in self.segments if (need := each.needs(choices, gpu))), None)


@lru_cache(maxsize=256)
def program_of(workload: Workload) -> GpuProgram:
    """What a workload is on a GPU; kept, since finding it takes longer than pricing it."""
    return GpuProgram(workload)
