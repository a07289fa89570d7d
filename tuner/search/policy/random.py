"""Random search: uniform draws from the space, the baseline of every other policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from tuner.program.task import SearchTask
from tuner.records import MeasureResult, Phase
from tuner.rules.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured
from tuner.search.policy._base import KERNELS_PER_DEVICE, Suggestion, suggestions_of
from tuner.search.policy.theory import TheorySettings, first_round, theory_set

KERNELS_PER_ROUND = 8
INSTANCES_PER_KERNEL = 2
DRAWS_PER_KERNEL = 50
"""Draws without a new kernel after which the space counts as exhausted."""


class RandomSearch:
    """Theory's set first, then kernels drawn from the space, each on the next instances in turn."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: TheorySettings | None = None,
    ) -> None:  # fmt: skip
        self._task, self._space, self._model = task, space, model
        self._settings = settings or TheorySettings()
        self._rng = np.random.default_rng(seed)
        self._weighted = [index for index, instance in enumerate(task.instances) if instance.weight > 0]
        self._measured = Measured()
        self._wrong: frozenset[MicroKernel] = frozenset()
        self._timed: frozenset[MicroKernel] = frozenset()
        self._has_begun = False
        self._turn = 0

    @cached_property
    def theory(self) -> list[MicroKernel]:
        return theory_set(self._task, self._space, self._model.theory, self._rng, self._settings, self._failed)

    @property
    def _failed(self) -> Collection[MicroKernel]:
        return self._measured.failed | self._wrong

    def recall(self, wrong: Collection[MicroKernel], timed: Collection[MicroKernel]) -> None:
        self._wrong, self._timed = frozenset(wrong), frozenset(timed)

    def update(self, results: Sequence[MeasureResult]) -> None:
        self._measured.add(results)
        self._has_begun = self._has_begun or any(result.phase is not Phase.KNOWN for result in results)

    def suggest(self, trials: int, pending: Collection[MicroKernel] = (), devices: int = 1) -> list[Suggestion]:
        if trials <= 0:
            return []
        if self._has_begun or pending:
            tried = self._measured.tried | self._wrong | self._timed | set(pending)
            count = max(KERNELS_PER_ROUND, KERNELS_PER_DEVICE * devices)
            picks = [(kernel, self._next_instances()) for kernel in self._drawn(tried, count)]
        else:
            picks = first_round(self._task, self._model.theory, self.theory, self._failed)
        return suggestions_of(self._task, self._model, picks, trials)

    def _drawn(self, tried: Collection[MicroKernel], count: int) -> list[MicroKernel]:
        """At most ``count`` kernels that are not among ``tried``; fewer where the space has hardly any left."""
        drawn: dict[MicroKernel, None] = {}
        for _ in range(count * DRAWS_PER_KERNEL):
            kernel = self._space.sample(self._rng)
            if kernel not in tried:
                drawn[kernel] = None
            if len(drawn) == count:
                break
        return list(drawn)

    def _next_instances(self) -> list[int]:
        """The instances whose turn it is, of those that have a weight."""
        count = min(INSTANCES_PER_KERNEL, len(self._weighted))
        chosen = [self._weighted[(self._turn + offset) % len(self._weighted)] for offset in range(count)]
        self._turn += count
        return sorted(chosen)
