"""Putting the cost model to the test: kernels far from all that were tried, and what it expects of them.

A search that ends because its model expects no gain is as good as the model. The model is trained on kernels that it
chose itself, so it may be wrong, and sure, about all others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import INTERVAL_SPREADS, CostModel
from tuner.search.observations import Measured
from tuner.search.policy._base import Pick
from tuner.search.policy.diverse import most_diverse
from tuner.search.policy.set_so_far import Floats

PROMISING_LOSS, BAD_LOSS = 0.15, 0.5
"""How much slower than the best (log latency) the model may expect the kernels of a test to be: of one half, that it
finds promising, and of the other, that it does not."""
SURPRISING_SHARE = 0.25
"""The share of a test's kernels: more that are faster than expected say that the model does not know them. A tenth of a
normal distribution is below its central 80 %."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A kernel of a test: below ``least_s`` its time at ``instance`` is a surprise."""

    kernel: MicroKernel
    instance: WorkloadInstance
    least_s: float


class ModelTest:
    """``count`` kernels of ``pool``, each at the instance where it is expected to do best, and what came of them."""

    def __init__(
        self, task: SearchTask, model: CostModel, weights: Floats, pool: Sequence[MicroKernel],
        tried: Collection[MicroKernel], count: int,
    ) -> None:  # fmt: skip
        """``weights`` [instances], one in sum; no kernel of ``pool`` is among those that were ``tried``."""
        self.picks: list[Pick] = []
        self._expected: list[Expected] = []
        if not pool or count <= 0:
            return
        prediction = model.predict(pool, [instance.shape for instance in task.instances])
        log_s = np.log(prediction.latency_s)
        relative = np.where(weights > 0, log_s - log_s.min(axis=0), np.inf)
        for index in self._chosen(pool, log_s @ weights, tried, count):
            at = int(relative[index].argmin())
            least_s = float(np.exp(log_s[index, at] - INTERVAL_SPREADS * prediction.spread[index, at]))
            self._expected.append(Expected(pool[index], task.instances[at], least_s))
            self.picks.append((pool[index], [at]))

    @staticmethod
    def _chosen(pool: Sequence[MicroKernel], log_s: Floats, tried: Collection[MicroKernel], count: int) -> list[int]:
        """Indices of the chosen kernels of ``pool``; ``log_s`` [kernels]."""
        index_of = {kernel: index for index, kernel in enumerate(pool)}
        behind, chosen = log_s - log_s.min(), list[MicroKernel]()
        for loss, share in ((PROMISING_LOSS, count - count // 2), (BAD_LOSS, count // 2)):
            good = [kernel for kernel, by in zip(pool, behind, strict=True) if by < loss and kernel not in chosen]
            chosen += most_diverse(good, [*tried, *chosen], share)
        return [index_of[kernel] for kernel in chosen]

    def is_failed(self, measured: Measured) -> bool:
        """Whether one of them is the fastest of all now, or more are faster than the intervals allow than is usual."""
        times = [(each, measured.latency_s(each.kernel, each.instance.values)) for each in self._expected]
        faster = sum(latency_s is not None and latency_s < each.least_s for each, latency_s in times)
        leads = any(measured.is_fastest(each.kernel, each.instance) for each in self._expected)
        return leads or faster > max(1, SURPRISING_SHARE * len(self._expected))
