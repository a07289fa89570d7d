"""Evolutionary search for a *set* of micro-kernels.

A kernel's fitness is the weighted gain that the set has when this kernel joins it, not its own speed: DietCode
(MLSys 2022) takes the maximum over the instances, so kernels that serve the same shapes crowd out the rest. Each round
evolves a population on the cost model alone (tile mutation and crossover), then takes candidates by four quotas: the
largest gain of the set, the best candidate of each instance in turn, the most uncertain promising one, and untried
neighbours of what is fastest now, which needs no model. The second round is a diverse one: kernels that the model
predicts to be good and that differ from one another in as many axes as possible, because a model that has seen one
value of an axis cannot tell what the others do.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.records import MeasureResult, Phase
from tuner.rules import layout_group
from tuner.rules.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured
from tuner.search.policy._base import KERNELS_PER_DEVICE, Pick, Suggestion, suggestions_of
from tuner.search.policy.theory import TheorySettings, first_round, theory_set

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARENTS_PER_INSTANCE = 4
CROSSOVER_RATE = 0.3
LEAST_ROUNDS = 8
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
    instances_per_kernel: int = 2
    diverse_kernels: int = 16
    """How many the diverse round measures, an eighth of the trials that are left at most."""
    diverse_loss: float = 0.15
    """How much slower than the best (log latency) those may be predicted to be: about twice theory's error."""
    theory: TheorySettings = field(default_factory=TheorySettings)
    optimism: float = 0.5
    """Standard deviations of log latency that a candidate is given the benefit of."""
    max_idle_rounds: int = 4
    """Rounds without any expected gain above ``least_gain`` before the search ends by itself."""
    least_gain: float = 0.003


class EvolutionarySearch:
    """The default policy."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: EvolutionSettings | None = None,
    ) -> None:  # fmt: skip
        self._task, self._space, self._model = task, space, model
        self._settings = settings or EvolutionSettings()
        self._rng = np.random.default_rng(seed)
        self._shapes = [instance.shape for instance in task.instances]
        self._index_of = {instance.values: index for index, instance in enumerate(task.instances)}
        weights = np.array([instance.weight for instance in task.instances])
        self._weights = weights / weights.sum()
        self._measured = Measured()
        self._pending: frozenset[MicroKernel] = frozenset()
        self._wrong: frozenset[MicroKernel] = frozenset()
        self._timed: frozenset[MicroKernel] = frozenset()
        self._has_begun = False
        self._idle_rounds = 0

    def recall(self, wrong: Collection[MicroKernel], timed: Collection[MicroKernel]) -> None:
        self._wrong, self._timed = frozenset(wrong), frozenset(timed)

    def update(self, results: Sequence[MeasureResult]) -> None:
        self._measured.add(results)
        self._has_begun = self._has_begun or any(result.phase is not Phase.KNOWN for result in results)

    def suggest(self, trials: int, pending: Collection[MicroKernel] = (), devices: int = 1) -> list[Suggestion]:
        self._pending = frozenset(pending)
        if trials <= 0 or self._idle_rounds >= self._settings.max_idle_rounds:
            return []
        # Not again where all of theory failed: the search goes on to what differs from it.
        if not self._has_begun and not pending:
            picks = first_round(self._task, self._model.theory, self.theory, self._failed)
        else:
            picks = self._diverse_round(trials // 8) or self._evolution_round(self._width(trials, devices))
        return suggestions_of(self._task, self._model, picks, trials)

    @cached_property
    def theory(self) -> list[MicroKernel]:
        settings = self._settings.theory
        return theory_set(self._task, self._space, self._model.theory, self._rng, settings, self._failed)

    # -- the diverse round ----------------------------------------------------------------------------------------
    def _diverse_round(self, count: int) -> list[Pick]:
        """Unlike kernels at the smallest and the largest instance; none if as many kernels were tried already, by this
        search or by others."""
        tried = self._tried | self._timed
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
        LEAST_ROUNDS are left to learn from."""
        usual = self._settings.kernels_per_round + self._settings.neighbours_per_round
        return max(1.0, min(KERNELS_PER_DEVICE * devices, trials // LEAST_ROUNDS) / usual)

    def _evolution_round(self, width: float) -> list[Pick]:
        pool, gains, spread = self._evolve()
        total = gains @ self._weights
        if len(pool) == 0 or total.max() < self._settings.least_gain:
            self._idle_rounds += 1
        else:
            self._idle_rounds = 0
        if not pool:
            return []
        chosen = self._quotas(gains, spread, round(width * self._settings.kernels_per_round))
        picks = {pool[index]: self._instances_for(gains[index]) for index in chosen}
        neighbours = self._neighbours_of_fastest(round(width * self._settings.neighbours_per_round))
        return list((neighbours | picks).items())

    def _quotas(self, gains: Floats, spread: Floats, wanted: int) -> list[int]:
        """Candidates by index: those with the largest gain, the best of some instances, and the most uncertain."""
        total = gains @ self._weights
        instances = self._weighted_instances()[: wanted // 2]
        chosen = [int(index) for index in (-total).argsort()[: wanted // 2]]
        chosen += [int(gains[:, instance_index].argmax()) for instance_index in instances]
        chosen += [int((total + 0.5 * (spread @ self._weights)).argmax())]
        return list(dict.fromkeys(chosen))[: wanted + 1]

    def _neighbours_of_fastest(self, count: int) -> dict[MicroKernel, list[int]]:
        """Untried neighbours of the fastest kernels, each at an instance where that one is the fastest."""
        picks: dict[MicroKernel, list[int]] = {}
        for instance_index in self._weighted_instances():
            if len(picks) == count:
                break
            near = [other for kernel in self._fastest(instance_index, 1) for other in self._space.neighbours(kernel)]
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
            fitness = self._gains(pool)[0] @ self._weights
            survivors = [pool[index] for index in (-fitness).argsort()[: settings.population // 4]] + parents
            children = [self._child(survivors) for _ in range(settings.population)]
            is_last = generation == settings.generations - 1
            random = [] if is_last else self._random(int(settings.population * settings.random_share))
            pool = self._usable(survivors + children + random)
        pool = self._untried(pool)
        if not pool:
            return [], np.zeros((0, len(self._shapes))), np.zeros((0, len(self._shapes)))
        gains, spread = self._gains(pool)
        return pool, gains, spread

    def _gains(self, pool: Sequence[MicroKernel]) -> tuple[Floats, Floats]:
        prediction = self._model.predict(pool, self._shapes)
        expected = prediction.latency_s * np.exp(-self._settings.optimism * prediction.spread)
        incumbent, penalty = self._incumbents(self._layouts(pool), prediction.latency_s)
        # A trace of its own speed breaks ties between kernels that are expected to gain nothing.
        own = np.log(incumbent / expected)
        return np.maximum(own - penalty[:, None], 0.0) + 1e-3 * np.minimum(own, 0.0), prediction.spread

    def _incumbents(self, layouts: Sequence[Hashable], predicted_s: Floats) -> tuple[Floats, Floats]:
        """For each kernel of the pool: the set's time at each instance, and the penalty of its layout (log latency).

        Kernels of another packed layout cannot join the set. Theirs is a set of its own, which takes over only when it
        is better as a whole; until then its gains count less by half of what it is slower.
        """
        best = self._best_by_layout()
        for layout in dict.fromkeys(layouts):
            members = [index for index, other in enumerate(layouts) if other == layout]
            floor = predicted_s[members].min(axis=0) * 1.02
            times = best.get(layout, floor)
            best[layout] = np.where(np.isinf(times), floor, times)
        totals = {layout: float((np.log(best[layout]) * self._weights).sum()) for layout in dict.fromkeys(layouts)}
        least = min(totals.values())
        penalty = np.array([0.5 * (totals[layout] - least) for layout in layouts])
        return np.stack([best[layout] for layout in layouts]), penalty

    def _best_by_layout(self) -> dict[Hashable, Floats]:
        """By packed layout the least measured latency at each instance, infinite where there is none."""
        kernels = self._measured.kernels
        best: dict[Hashable, Floats] = {}
        for kernel, layout in zip(kernels, self._layouts(kernels), strict=True):
            times = best.setdefault(layout, np.full(len(self._shapes), np.inf))
            for shape, latency in self._measured.latencies_of(kernel).items():
                if (index := self._index_of.get(shape)) is not None:
                    times[index] = min(times[index], latency)
        return best

    def _parents(self) -> list[MicroKernel]:
        """The fastest measured kernels of each instance."""
        parents: dict[MicroKernel, None] = {}
        for instance_index in range(len(self._shapes)):
            parents |= dict.fromkeys(self._fastest(instance_index, PARENTS_PER_INSTANCE))
        return list(parents)

    def _fastest(self, instance_index: int, count: int) -> list[MicroKernel]:
        """The fastest measured kernels of one instance."""
        times = self._measured.latencies_at(self._task.instances[instance_index])
        return sorted(times, key=lambda kernel: times[kernel])[:count]

    def _child(self, parents: Sequence[MicroKernel]) -> MicroKernel:
        first = parents[int(self._rng.integers(len(parents)))]
        if self._rng.random() < CROSSOVER_RATE:
            second = parents[int(self._rng.integers(len(parents)))]
            first = self._space.crossover(first, second, self._rng)
        return self._space.mutate(first, self._rng)

    def _random(self, count: int) -> list[MicroKernel]:
        return [self._space.sample(self._rng) for _ in range(count)]

    # -- what is known --------------------------------------------------------------------------------------------
    @property
    def _tried(self) -> Set[MicroKernel]:
        return self._measured.tried | self._pending | self._wrong

    @property
    def _failed(self) -> Set[MicroKernel]:
        return self._measured.failed | self._wrong

    def _usable(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        """Each once, without those that failed."""
        failed = self._failed
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in failed]

    def _untried(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        tried = self._tried
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in tried]

    def _layouts(self, kernels: Sequence[MicroKernel]) -> list[Hashable]:
        return [layout_group(self._task, kernel) for kernel in kernels]

    def _weighted_instances(self) -> Ints:
        """The indices of the instances that have a weight, in random order."""
        return self._rng.permutation(np.flatnonzero(self._weights))

    def _instances_for(self, gains: Floats) -> list[int]:
        """The instances where the kernel is expected to gain most; one that gains nowhere goes to one of its best."""
        least = self._settings.least_gain
        order = (-gains * self._weights).argsort()[: self._settings.instances_per_kernel]
        helped = [int(index) for index in order if self._weights[index] > 0 and gains[index] > least]
        return sorted(helped or [int(order[0])])


def most_diverse(pool: Sequence[MicroKernel], tried: Collection[MicroKernel], count: int) -> list[MicroKernel]:
    """At most ``count`` kernels of ``pool``, each the one whose nearest neighbour among those before it and ``tried``
    (at least one kernel) differs in the most axes. An axis that one rule has and another has not differs."""
    axes = sorted({name for kernel in (*pool, *tried) for name, _ in kernel.values})
    rules = {kernel.rule: number for number, kernel in enumerate((*pool, *tried))}
    values, known = (
        np.array([[rules[kernel.rule], *(dict(kernel.values).get(axis, -1) for axis in axes)] for kernel in kernels])
        for kernels in (pool, tried)
    )
    nearest = np.min([(values != other).sum(axis=1) for other in known], axis=0)
    chosen: list[int] = []
    while len(chosen) < min(count, len(pool)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, (values != values[chosen[-1]]).sum(axis=1))
    return [pool[index] for index in chosen]
