"""How long the end of a search is going to take, by what its parts have taken so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.measure import KeptBuilds
from tuner.program.task import SearchTask
from tuner.rules.space import MicroKernel
from tuner.search.trials import Trials

LINK_S, IR_SHARE = 0.5, 0.4
"""What linking a library takes, and what writing down the IR of each of its kernels adds, as a part of its build."""
VERIFY_RATE, SHAPE_S = 6e9, 0.02
"""Operations (see Workload.work) a second of a verification, and what each shape adds, before any was timed."""
MARGIN = 1.15
"""How much longer than that it may take."""


class Forecast:
    """Predictions in seconds for one search, on the machine as it is now: a busy one made the readings longer, too."""

    def __init__(self, task: SearchTask, builds: KeptBuilds, trials: Trials) -> None:
        self._task, self._builds, self._trials = task, builds, trials
        self._work, self._verified_s = 0.0, 0.0

    @property
    def has_verified(self) -> bool:
        return self._verified_s > 0

    def verified(self, dims: Sequence[Mapping[str, int]], spent_s: float) -> None:
        """Learn from a verification."""
        self._work += sum(map(self._task.workload.work, dims))
        self._verified_s += max(1e-6, spent_s - SHAPE_S * len(dims))

    def verify_s(self, dims: Sequence[Mapping[str, int]]) -> float:
        work = sum(map(self._task.workload.work, dims))
        rate = self._work / self._verified_s if self.has_verified and self._work else VERIFY_RATE
        return SHAPE_S * len(dims) + MARGIN * work / rate

    def build_s(self, kernels: Sequence[MicroKernel]) -> float:
        """Of those that are not built yet, one after another, as long as each took before or the mean."""
        missing = (kernel for kernel in kernels if not self._builds.has(kernel))
        return MARGIN * sum(self._trials.build_s(kernel) for kernel in missing)

    def link_s(self, kernels: Sequence[MicroKernel]) -> float:
        return MARGIN * (LINK_S + IR_SHARE * sum(self._trials.build_s(kernel) for kernel in kernels))

    def largest_link_s(self) -> float:
        """Of a library of as many kernels as the task allows."""
        return MARGIN * (LINK_S + IR_SHARE * self._task.max_kernels * self._trials.mean_build_s)

    def step_s(self) -> float:
        """Of one more kernel of the search: what may have begun when the seconds are over."""
        return self._trials.trial_s if self._builds.beside else self._trials.step_s
