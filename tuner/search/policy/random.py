"""Random search: uniform draws from the space, the baseline of every other policy."""

from __future__ import annotations

from tuner.program.job.task import SearchTask
from tuner.schedule.space import KernelSpace
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy, kernels_of_round

KERNELS_PER_ROUND = 8
INSTANCES_PER_KERNEL = 2


class RandomSearch(BasePolicy):
    """Theory's set first, then kernels drawn from the space, each on the next instances in turn."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: TheorySettings | None = None,
    ) -> None:  # fmt: skip
        super().__init__(task, space, model, seed, settings)
        self._weighted = [index for index, instance in enumerate(task.instances) if instance.weight > 0]
        self._turn = 0

    def _next(self, trials: int, devices: int) -> list[Pick]:
        count = kernels_of_round(KERNELS_PER_ROUND, devices)
        return [(kernel, self._next_instances()) for kernel in self._drawn(count, self._known)]

    def _next_instances(self) -> list[int]:
        """The instances whose turn it is, of those that have a weight."""
        count = min(INSTANCES_PER_KERNEL, len(self._weighted))
        chosen = [self._weighted[(self._turn + offset) % len(self._weighted)] for offset in range(count)]
        self._turn += count
        return sorted(chosen)
