"""When a search that has no end of its own is given up: after so many kernels without a gain.

As ``early_stopping`` of AutoTVM's tuners does, which ends after so many trials without a better configuration. It
follows from the results alone, so a search that goes on after a restart is as patient as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.policy.set_so_far import MIN_GAIN


class Patience:
    """Counts kernels since the best times of all instances last fell, in weighted log latency, by ``least_gain`` in
    sum. ``kernels``: how many without that are enough."""

    def __init__(self, task: SearchTask, kernels: int, least_gain: float = MIN_GAIN) -> None:
        self._most, self._least_gain = kernels, least_gain
        total = sum(instance.weight for instance in task.instances)
        self._weights = {instance.values: instance.weight / total for instance in task.instances}
        self._best_s: dict[object, float] = {}
        self._gained = 0.0
        self._idle: set[MicroKernel] = set()

    @property
    def is_over(self) -> bool:
        return len(self._idle) >= self._most

    def add(self, results: Sequence[MeasureResult]) -> None:
        """Take in results in the order in which they came."""
        for result in results:
            self._idle.add(result.kernel)
            if result.latency_s is not None:
                self._gained += self._gain(result.instance, result.latency_s)
            if self._gained >= self._least_gain:
                self._gained = 0.0
                self._idle.clear()

    def _gain(self, instance: WorkloadInstance, latency_s: float) -> float:
        """Infinite for the first time of an instance."""
        weight, best_s = self._weights.get(instance.values, 0.0), self._best_s.get(instance.values, math.inf)
        if weight == 0 or latency_s >= best_s:
            return 0.0
        self._best_s[instance.values] = latency_s
        return weight * math.log(best_s / latency_s)
