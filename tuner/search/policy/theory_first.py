"""What all policies have in common: theory's set first, and what is known of the kernels that were tried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence, Set
from functools import cached_property

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult, Phase
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured
from tuner.search.policy._base import KERNELS_PER_DEVICE, Pick, Suggestion, suggestions_of
from tuner.search.policy.set_so_far import Incumbents
from tuner.search.policy.theory import TheorySettings, first_round, theory_set

DRAWS_PER_KERNEL = 50
"""Draws without a new kernel after which the space counts as exhausted."""


class BasePolicy(ABC):
    """A SearchPolicy but for ``_next``: what to measure once theory's set was."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: TheorySettings | None = None,
    ) -> None:  # fmt: skip
        self._task, self._space, self._model = task, space, model
        self._theory_settings = settings or TheorySettings()
        self._rng = np.random.default_rng(seed)
        self._shapes = [instance.shape for instance in task.instances]
        weights = np.array([instance.weight for instance in task.instances])
        self._weights = weights / weights.sum()
        self._measured = Measured()
        self._set = Incumbents(task, model, self._measured, self._weights)
        self._pending: frozenset[MicroKernel] = frozenset()
        self._wrong: frozenset[MicroKernel] = frozenset()
        self._timed: frozenset[MicroKernel] = frozenset()
        self._has_begun = False

    @cached_property
    def theory(self) -> list[MicroKernel]:
        settings = self._theory_settings
        return theory_set(self._task, self._space, self._model.theory, self._rng, settings, self._failed)

    def recall(self, wrong: Collection[MicroKernel], timed: Collection[MicroKernel]) -> None:
        self._wrong, self._timed = frozenset(wrong), frozenset(timed)

    def update(self, results: Sequence[MeasureResult]) -> None:
        self._measured.add(results)
        self._has_begun = self._has_begun or any(result.phase is not Phase.KNOWN for result in results)

    def suggest(self, trials: int, pending: Collection[MicroKernel] = (), devices: int = 1) -> list[Suggestion]:
        self._pending = frozenset(pending)
        if trials <= 0:
            return []
        # Not again where all of theory failed: the search goes on to what differs from it.
        picks = self._next(trials, devices) if self._has_begun or pending else self._first_round()
        return suggestions_of(self._task, self._model, picks, trials)

    @abstractmethod
    def _next(self, trials: int, devices: int) -> list[Pick]:
        """What to measure next, the most promising first; ``trials`` and ``devices`` as for ``suggest``."""

    def _first_round(self) -> list[Pick]:
        return first_round(self._task, self._model.theory, self.theory, self._failed)

    # -- what is known --------------------------------------------------------------------------------------------
    @property
    def _tried(self) -> Set[MicroKernel]:
        return self._measured.tried | self._pending | self._wrong

    @property
    def _failed(self) -> Set[MicroKernel]:
        return self._measured.failed | self._wrong

    @property
    def _known(self) -> Set[MicroKernel]:
        """Kernels that were tried, here or by an earlier search: the search for unknown ones passes them over."""
        return self._tried | self._timed

    # -- the space ------------------------------------------------------------------------------------------------
    def _random(self, count: int) -> list[MicroKernel]:
        return [self._space.sample(self._rng) for _ in range(count)]

    def _drawn(self, count: int, without: Collection[MicroKernel]) -> list[MicroKernel]:
        """At most ``count`` random kernels that are not among ``without``; fewer where it has hardly any left."""
        drawn: dict[MicroKernel, None] = {}
        for _ in range(count * DRAWS_PER_KERNEL):
            if len(drawn) == count:
                break
            kernel = self._space.sample(self._rng)
            if kernel not in without:
                drawn[kernel] = None
        return list(drawn)


def kernels_of_round(usual: int, devices: int) -> int:
    """``usual`` is for one device; more of them are kept busy by more kernels."""
    return max(usual, KERNELS_PER_DEVICE * devices)
