"""Rules whose programs are one product and nothing besides: its theory is theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.product import estimate
from tuner.schedule.product.product import Product
from tuner.schedule.rule import Extents, Rule
from tuner.schedule.space import MicroKernel


class ProductRule(Rule):
    """A rule for the programs that ``product`` takes."""

    @abstractmethod
    def product(self, workload: Workload) -> Product:
        """The product that a workload is. Raises ValueError for a workload that the rule does not take."""

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, self.product(task.workload), kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, self.product(task.workload), kernels, extents)
