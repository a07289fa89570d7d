"""Rules for programs that are loops over elements: what theory says of one kernel at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.rule import Extents, Rule
from tuner.schedule.space import MicroKernel


class LoopRule(Rule):
    """A rule that estimates its kernels one by one."""

    @abstractmethod
    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        """[shapes]: cycles that theory expects."""

    @abstractmethod
    def sizes(self, task: SearchTask, extents: Extents) -> Sequence[Floats]:
        """What features say of the shapes, each [shapes]."""

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return np.stack([self.cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return feature_table(self.sizes(task, extents), kernels, self.estimate_s(task, kernels, extents))
