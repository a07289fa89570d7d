"""A rule's kernels for one thread, in the space of a task for several: waking the others takes longer than some shapes
do. Which shapes these are is measured, and dispatched, as everything else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout
from tuner.schedule.rule import Extents, NoMatch, Theory, Tiles, TirRule
from tuner.schedule.space import MicroKernel, SearchSpace

SERIAL = "serial:"


class Serial(TirRule):
    """``rule`` as if the task were for one thread. Its micro-kernels differ from the rule's own by its name alone."""

    def __init__(self, rule: TirRule) -> None:
        self.rule, self.version = rule, rule.version
        self.name = SERIAL + rule.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serial) and self.rule == other.rule

    def __hash__(self) -> int:
        return hash(self.name)

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        return self.rule.roles(workload, target)

    def workspace_bytes(self, task: SearchTask) -> int:
        return self.rule.workspace_bytes(task.for_threads(1))

    def space(self, task: SearchTask) -> SearchSpace:
        return replace(self.rule.space(task.for_threads(1)), rule=self.name)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        return self.named(self.rule.default_kernel(task.for_threads(1)))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return self.rule.estimate_s(task.for_threads(1), self._own(kernels), extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return self.rule.features(task.for_threads(1), self._own(kernels), extents)

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        return self.rule.theory(task.for_threads(1), self._own(kernels), extents)

    def is_bounded(self, kernel: MicroKernel) -> bool:
        return self.rule.is_bounded(self._own([kernel])[0])

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        return self.rule.tiles(task.for_threads(1), self._own([kernel])[0])

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return self.rule.layouts(task.for_threads(1), self._own([kernel])[0])

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        self.rule.body(task.for_threads(1), self._own([kernel])[0], function)

    def named(self, kernel: MicroKernel) -> MicroKernel:
        """A kernel of the rule, by this one's name."""
        return MicroKernel(self.name, self.version, kernel.values)

    def _own(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The kernels as the rule names them."""
        return [MicroKernel(self.rule.name, self.version, kernel.values) for kernel in kernels]
