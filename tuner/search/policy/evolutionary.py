"""Evolutionary search for a *set* of micro-kernels.

A kernel's fitness is the weighted gain that the set has when this kernel joins it, not its own speed: DietCode
(MLSys 2022) takes the maximum over the instances, so kernels that serve the same shapes crowd out the rest. Each round
evolves a population on the cost model alone (tile mutation and crossover), then takes candidates by four quotas: those
that together gain most, each chosen beside those before it; what is left to gain at instances in turn; the most
uncertain promising one; and untried neighbours of what is fastest now, which needs no model. The second round is a
diverse one: kernels that the model predicts to be good and that differ from one another in as many axes as possible,
because a model that has seen one value of an axis cannot tell what the others do.

"Nothing is expected to help" is what a model says that may be wrong. So when that has been said a few times, the model
is put to the test: kernels far from all that were tried are measured, some that it finds promising and some that it
does not. One that is faster than the model's interval allows sends the search back to evolution. After a test that the
model passes, what is left of the budget goes to coordinate descents from the fastest kernels (policy/droplet.py), which
ask no model; the search ends when they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import KERNELS_PER_DEVICE, Pick
from tuner.search.policy.diverse import most_diverse
from tuner.search.policy.droplet import Descents
from tuner.search.policy.model_test import ModelTest
from tuner.search.policy.set_so_far import INSTANCES_PER_KERNEL, MIN_GAIN, OPTIMISM, JointGains
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARENTS_PER_INSTANCE = 4
CROSSOVER_RATE = 0.3
MIN_ROUNDS = 8
"""Rounds that what is left of the budget is enough for, however many devices there are."""


@dataclass(frozen=True, slots=True)
class EvolutionSettings:
    """How wide and how long the search between two batches of measurements is."""

    population: int = 256
    generations: int = 4
    random_share: float = 0.25
    """Kernels drawn at random into each generation but the last, as a share of the population."""
    kernels_per_round: int = 8
    neighbours_per_round: int = 3
    instances_per_kernel: int = INSTANCES_PER_KERNEL
    diverse_kernels: int = 16
    """How many the diverse round measures, an eighth of the trials that are left at most."""
    diverse_loss: float = 0.15
    """How much slower than the best (log latency) those may be predicted to be: about twice theory's error."""
    theory: TheorySettings = field(default_factory=TheorySettings)
    optimism: float = OPTIMISM
    max_idle_rounds: int = 4
    """Rounds without any expected gain above ``least_gain`` before the model is put to the test."""
    least_gain: float = MIN_GAIN
    test_kernels: int = 12
    """Kernels of a test, an eighth of the trials that are left at most."""
    max_failed_tests: int = 4
    """Tests that may send the search back to evolution."""
    descent_threshold: float = 0.005
    """The share of its time by which a kernel must be faster to become the centre of a descent."""


class EvolutionarySearch(BasePolicy):
    """The default policy."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: EvolutionSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or EvolutionSettings()
        super().__init__(task, space, model, seed, self._settings.theory)
        self._idle_rounds = self._failed_tests = 0
        self._test: ModelTest | None = None
        threshold = self._settings.descent_threshold
        self._descents = Descents(space, self._set.standing, self._weights, self._rng, threshold)

    def _next(self, trials: int, devices: int) -> list[Pick]:
        width = self._width(trials, devices)
        if self._idle_rounds < self._settings.max_idle_rounds:
            return self._diverse_round(trials // 8) or self._evolution_round(width)
        if self._test is None:
            pool = self._untried(self._random(self._settings.theory.samples))
            count = min(self._settings.test_kernels, trials // 8)
            self._test = ModelTest(self._task, self._model, self._weights, pool, self._known, count)
            if self._test.picks:
                return self._test.picks
        if self._failed_tests < self._settings.max_failed_tests and self._test.is_failed(self._measured):
            self._failed_tests, self._idle_rounds, self._test = self._failed_tests + 1, 0, None
            return self._evolution_round(width)
        usual = self._settings.kernels_per_round + self._settings.neighbours_per_round
        return self._descents.next(round(width * usual), self._known)

    # -- the diverse round ----------------------------------------------------------------------------------------
    def _diverse_round(self, count: int) -> list[Pick]:
        """Unlike kernels at the smallest and the largest instance; none if as many kernels were tried already, by this
        search or by others."""
        tried = self._known
        count = min(self._settings.diverse_kernels, count) - len(tried)
        if count <= 0:
            return []
        drawn = self._random(self._settings.theory.samples)
        pool = [kernel for kernel in dict.fromkeys(drawn) if kernel not in tried]
        if not pool:
            return []
        mean = np.log(self._model.predict(pool, self._shapes).latency_s) @ self._weights
        good = [pool[index] for index in np.flatnonzero(mean < mean.min() + self._settings.diverse_loss)]
        ends = sorted({0, len(self._shapes) - 1})
        return [(kernel, ends) for kernel in most_diverse(good, tried, count)]

    # -- evolution ------------------------------------------------------------------------------------------------
    def _width(self, trials: int, devices: int) -> float:
        """How many times as many kernels as for one device: enough for all of them, but never so many that fewer than
        MIN_ROUNDS are left to learn from."""
        usual = self._settings.kernels_per_round + self._settings.neighbours_per_round
        return max(1.0, min(KERNELS_PER_DEVICE * devices, trials // MIN_ROUNDS) / usual)

    def _evolution_round(self, width: float) -> list[Pick]:
        settings = self._settings
        pool, gains, spread = self._evolve()
        total = gains @ self._weights
        if len(pool) == 0 or total.max() < settings.least_gain:
            self._idle_rounds += 1
        else:
            self._idle_rounds = 0
        if not pool:
            return []
        chosen = self._quotas(pool, gains, spread, round(width * settings.kernels_per_round))
        picks = {
            pool[index]: self._set.instances_for(added, settings.least_gain, settings.instances_per_kernel)
            for index, added in chosen.items()
        }
        neighbours = self._neighbours_of_fastest(round(width * settings.neighbours_per_round))
        return list((neighbours | picks).items())

    def _quotas(self, pool: Sequence[MicroKernel], gains: Floats, spread: Floats, wanted: int) -> dict[int, Floats]:
        """Candidates by index, each with what it is picked for ([instances]): those that together gain most, what is
        left to gain at some instances, and the most uncertain."""
        joint = JointGains(gains, self._weights, self._set.layouts(pool))
        turns = [None] * (wanted // 2) + [int(each) for each in self._weighted_instances()[: wanted // 2]]
        chosen = dict(joint.take(instance) for instance in turns[: len(pool)])
        uncertain = int((gains @ self._weights + 0.5 * (spread @ self._weights)).argmax())
        chosen.setdefault(uncertain, gains[uncertain])
        return dict(list(chosen.items())[: wanted + 1])

    def _neighbours_of_fastest(self, count: int) -> dict[MicroKernel, list[int]]:
        """Untried neighbours of the fastest kernels, each at an instance where that one is the fastest."""
        picks: dict[MicroKernel, list[int]] = {}
        for instance_index in self._weighted_instances():
            if len(picks) == count:
                break
            near = [
                other for kernel in self._set.fastest(instance_index, 1) for other in self._space.neighbours(kernel)
            ]
            candidates = [kernel for kernel in self._untried(near) if kernel not in picks and kernel not in self._timed]
            if candidates:
                picks[candidates[int(self._rng.integers(len(candidates)))]] = [int(instance_index)]
        return picks

    def _evolve(self) -> tuple[list[MicroKernel], Floats, Floats]:
        """New kernels with their expected gains (log of the set's time over theirs, 0 if slower) at each instance."""
        settings = self._settings
        parents = self._parents()
        pool = self._usable(parents + self._random(settings.population))
        for generation in range(settings.generations):
            fitness = self._set.gains(pool, self._settings.optimism)[0] @ self._weights
            survivors = [pool[index] for index in (-fitness).argsort()[: settings.population // 4]] + parents
            children = [self._child(survivors) for _ in range(settings.population)]
            is_last = generation == settings.generations - 1
            random = [] if is_last else self._random(int(settings.population * settings.random_share))
            pool = self._usable(survivors + children + random)
        pool = self._untried(pool)
        if not pool:
            return [], np.zeros((0, len(self._shapes))), np.zeros((0, len(self._shapes)))
        gains, spread = self._set.gains(pool, self._settings.optimism)
        return pool, gains, spread

    def _parents(self) -> list[MicroKernel]:
        """The fastest measured kernels of each instance."""
        parents: dict[MicroKernel, None] = {}
        for instance_index in range(len(self._shapes)):
            parents |= dict.fromkeys(self._set.fastest(instance_index, PARENTS_PER_INSTANCE))
        return list(parents)

    def _child(self, parents: Sequence[MicroKernel]) -> MicroKernel:
        first = parents[int(self._rng.integers(len(parents)))]
        if self._rng.random() < CROSSOVER_RATE:
            second = parents[int(self._rng.integers(len(parents)))]
            first = self._space.crossover(first, second, self._rng)
        return self._space.mutate(first, self._rng)

    # -- what is known --------------------------------------------------------------------------------------------
    def _usable(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The kernels, each once, without those that failed."""
        failed = self._failed
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in failed]

    def _untried(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        tried = self._tried
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in tried]

    def _weighted_instances(self) -> Ints:
        """The indices of the instances that have a weight, in random order."""
        return self._rng.permutation(np.flatnonzero(self._weights))
