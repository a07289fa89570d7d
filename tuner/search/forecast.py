"""How long the end of a search is going to take, by what its parts have taken so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.measure import KeptBuilds
from tuner.program.job.budget_plan import VERIFY_RATE, verify_work
from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel
from tuner.search.trials import Trials

LINK_S, IR_SHARE = 0.5, 0.4
"""The least time of linking a library (as long as a build if that takes longer: its ENTRY is compiled), and the share
of each kernel's build that writing down its IR adds."""
SHAPE_S = 0.02
"""The time that each shape adds to a verification, before any was timed."""
SAMPLE_WORK = 2e9
"""Operations (see Workload.work) of the instance that the time of a verification is learned from, at most."""
SMALL_SHARE = 0.01
"""A shape of less than this part of the operations of the largest one, or of SAMPLE_WORK, tells what each shape adds,
not the rate."""
MIN_SHARE = 0.1
"""The least share of the time of larger shapes that their operations are taken to need."""
MARGIN = 1.15
"""How much longer than that it may take."""


class Forecast:
    """Predictions in seconds for one search, on the machine as it is now: a busy one made the readings longer, too."""

    def __init__(self, task: SearchTask, builds: KeptBuilds, trials: Trials) -> None:
        self._task, self._builds, self._trials = task, builds, trials
        largest = max(task.workload.work(task.workload.dims(shape)) for shape in task.shapes())
        self._small_work = SMALL_SHARE * min(largest, SAMPLE_WORK)
        self._small, self._small_s = 0, 0.0
        self._large, self._large_s, self._work = 0, 0.0, 0.0
        # A search asks for the same shapes after each trial.
        self._work_at: dict[tuple[int, ...], float] = {}

    @property
    def has_verified(self) -> bool:
        return bool(self._small or self._large)

    def verified(self, dims: Sequence[Mapping[str, int]], spent_s: float) -> None:
        """Learn from a verification. Sending and loading the library count for each shape, however small it is: taken
        for work, they would make the largest shapes seem to take many times as long as they do."""
        work = sum(map(self._task.workload.work, dims))
        if work <= self._small_work * len(dims):
            self._small, self._small_s = self._small + len(dims), self._small_s + spent_s
        else:
            self._large, self._large_s = self._large + len(dims), self._large_s + spent_s
            self._work += sum(map(self._work_of, dims))

    def verify_s(self, dims: Sequence[Mapping[str, int]]) -> float:
        shape_s = self._small_s / self._small if self._small else SHAPE_S
        work_s = max(MIN_SHARE * self._large_s, self._large_s - shape_s * self._large)
        rate = self._work / max(1e-6, work_s) if self._large else VERIFY_RATE
        return MARGIN * (shape_s * len(dims) + sum(map(self._work_of, dims)) / rate)

    def _work_of(self, dims: Mapping[str, int]) -> float:
        symbols = self._task.workload.symbols
        at = tuple(dims[name] for name in symbols)
        if at not in self._work_at:
            self._work_at[at] = verify_work(self._task.workload, dims)
        return self._work_at[at]

    def build_s(self, kernels: Sequence[MicroKernel]) -> float:
        """The time to build those that are not built, one after another: as long as each took before, or the mean."""
        missing = (kernel for kernel in kernels if not self._builds.has(kernel))
        return MARGIN * sum(self._trials.build_s(kernel) for kernel in missing)

    def link_s(self, kernels: Sequence[MicroKernel]) -> float:
        return self._link_s(sum(self._trials.build_s(kernel) for kernel in kernels))

    def largest_link_s(self) -> float:
        """The time to link a library of as many kernels as the task allows."""
        return self._link_s(self._task.max_kernels * self._trials.mean_build_s)

    def _link_s(self, builds_s: float) -> float:
        """``builds_s``: what building all of its kernels takes."""
        return MARGIN * (max(LINK_S, self._trials.mean_build_s) + IR_SHARE * builds_s)

    def step_s(self) -> float:
        """The time of one more kernel of the search, which may have begun when the seconds are over."""
        return self._trials.trial_s if self._builds.beside else self._trials.step_s
