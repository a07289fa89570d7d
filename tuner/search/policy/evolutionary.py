"""Evolutionary search for a *set* of micro-kernels.

A kernel's fitness is the weighted gain that the set has when this kernel joins it, not its own speed: DietCode
(MLSys 2022) takes the maximum over the instances, so kernels that serve the same shapes crowd out the rest. Each round
evolves a population on the cost model alone (tile mutation and crossover), then takes candidates by four quotas: the
largest gain of the set, the best candidate of each instance in turn, the most uncertain promising one, and untried
neighbours of what is fastest now, which needs no model. The second round is of kernels that theory finds good and that
are as unlike one another as can be: a model that has seen one value of an axis cannot tell what the others do.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.records import MeasureResult
from tuner.rules import rule_for
from tuner.rules.space import MicroKernel, SearchSpace
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick, Suggestion, suggestions_of
from tuner.search.policy.theory import TheorySettings, first_round, theory_set

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvolutionSettings:
    """How wide and how long the search between two batches of measurements is."""

    population: int = 256
    generations: int = 4
    fresh: float = 0.25
    kernels_per_round: int = 8
    neighbours_per_round: int = 3
    instances_per_kernel: int = 2
    varied_kernels: int = 16
    """How many the second round takes, an eighth of the trials that are left at most."""
    varied_loss: float = 0.15
    """How much slower than the best (log latency) theory may expect those to be: about twice its error."""
    theory: TheorySettings = field(default_factory=TheorySettings)
    optimism: float = 0.5
    """Standard deviations of log latency that a candidate is given the benefit of."""
    patience: int = 4
    """Rounds without any expected gain above ``least_gain`` before the search ends by itself."""
    least_gain: float = 0.003


class EvolutionarySearch:
    """The default policy. ``results`` from before (of the same task) may be passed to ``update`` to go on from them."""

    def __init__(
        self, task: SearchTask, space: SearchSpace, model: CostModel, seed: int = 0,
        settings: EvolutionSettings | None = None,
    ) -> None:  # fmt: skip
        self._task, self._space, self._model = task, space, model
        self._settings = settings or EvolutionSettings()
        self._rng = np.random.default_rng(seed)
        self._rule = rule_for(task.workload)
        self._shapes = [instance.shape for instance in task.instances]
        weights = np.array([instance.weight for instance in task.instances])
        self._weights = weights / weights.sum()
        self._readings: dict[tuple[MicroKernel, int], list[float]] = {}
        self._measured: dict[MicroKernel, dict[int, float]] = {}
        self._failed: set[MicroKernel] = set()
        self._pending: frozenset[MicroKernel] = frozenset()
        self._idle_rounds = 0

    # -- the two verbs --------------------------------------------------------------------------------------------
    def update(self, results: Sequence[MeasureResult]) -> None:
        places = {instance.values: index for index, instance in enumerate(self._task.instances)}
        for result in results:
            place = places.get(result.instance.values)
            if result.latency_s is None:
                self._failed.add(result.kernel)
                self._measured.pop(result.kernel, None)
            elif place is not None and result.kernel not in self._failed:
                readings = self._readings.setdefault((result.kernel, place), [])
                readings.append(result.latency_s)
                # The fastest reading would be the luckiest one.
                self._measured.setdefault(result.kernel, {})[place] = statistics.median(readings)

    def suggest(self, trials: int, pending: Collection[MicroKernel] = ()) -> list[Suggestion]:
        self._pending = frozenset(pending)
        if trials <= 0 or self._idle_rounds >= self._settings.patience:
            return []
        # Not again where all of theory failed: the search goes on to what differs from it.
        if not self._tried:
            return self._suggestions(first_round(self._task, self._model, self.theory, self._failed), trials)
        varied = self._varied(trials // 8)
        return self._suggestions(varied or self._improving(), trials)

    # -- theory ---------------------------------------------------------------------------------------------------
    @cached_property
    def theory(self) -> list[MicroKernel]:
        return theory_set(self._task, self._space, self._model, self._rng, self._settings.theory, self._failed)

    def _varied(self, count: int) -> list[Pick]:
        """The second round, at the smallest and the largest instance; nothing if as many kernels were tried already."""
        tried = self._tried
        count = min(self._settings.varied_kernels, count) - len(tried)
        if count <= 0:
            return []
        pool = self._untried(self._fresh(self._settings.theory.samples))
        if not pool:
            return []
        mean = np.log(self._model.predict(pool, self._shapes).latency_s) @ self._weights
        good = [pool[index] for index in np.flatnonzero(mean < mean.min() + self._settings.varied_loss)]
        ends = sorted({0, len(self._shapes) - 1})
        return [(kernel, ends) for kernel in self._unlike(good, tried, count)]

    def _unlike(self, pool: Sequence[MicroKernel], tried: Collection[MicroKernel], count: int) -> list[MicroKernel]:
        """Each the one whose nearest neighbour among those before it (and ``tried``) differs in the most axes."""
        axes = sorted({name for kernel in (*pool, *tried) for name, _ in kernel.values})
        rules = {kernel.rule: number for number, kernel in enumerate((*pool, *tried))}
        values, known = (
            np.array([[rules[kernel.rule], *(dict(kernel.values).get(axis, -1) for axis in axes)] for kernel in some])
            for some in (pool, tried)
        )
        nearest = np.min([(values != other).sum(axis=1) for other in known], axis=0)
        found: list[int] = []
        while len(found) < min(count, len(pool)):
            found.append(int(nearest.argmax()))
            nearest = np.minimum(nearest, (values != values[found[-1]]).sum(axis=1))
        return [pool[index] for index in found]

    # -- evolution ------------------------------------------------------------------------------------------------
    def _improving(self) -> list[Pick]:
        pool, gains, spread = self._evolved()
        total = gains @ self._weights
        if len(pool) == 0 or total.max() < self._settings.least_gain:
            self._idle_rounds += 1
        else:
            self._idle_rounds = 0
        if not pool:
            return []
        wanted = self._settings.kernels_per_round
        order: list[int] = []
        order += [int(index) for index in (-total).argsort()[: wanted // 2]]
        turns = self._rng.permutation(np.flatnonzero(self._weights))
        order += [int(gains[:, place].argmax()) for place in turns[: wanted // 2]]
        order += [int((total + 0.5 * (spread @ self._weights)).argmax())]
        picked = {pool[index]: self._instances_for(gains[index]) for index in list(dict.fromkeys(order))[: wanted + 1]}
        return list((self._near() | picked).items())

    def _near(self) -> dict[MicroKernel, list[int]]:
        """Untried neighbours of the fastest kernels, each at an instance where that one is the fastest."""
        found: dict[MicroKernel, list[int]] = {}
        for place in self._rng.permutation(np.flatnonzero(self._weights)):
            if len(found) == self._settings.neighbours_per_round:
                break
            near = [near for fastest in self._fastest(place, 1) for near in self._space.neighbours(fastest)]
            near = [kernel for kernel in self._untried(near) if kernel not in found]
            if near:
                found[near[int(self._rng.integers(len(near)))]] = [int(place)]
        return found

    def _evolved(self) -> tuple[list[MicroKernel], Floats, Floats]:
        """New kernels with their expected gains (log of the set's time over theirs, 0 if slower) at each instance."""
        settings = self._settings
        parents = self._parents()
        pool = self._distinct(parents + self._fresh(settings.population))
        for generation in range(settings.generations):
            scores = self._gains(pool)[0] @ self._weights
            keep = [pool[index] for index in (-scores).argsort()[: settings.population // 4]] + parents
            children = [self._child(keep) for _ in range(settings.population)]
            fresh = (
                self._fresh(int(settings.population * settings.fresh)) if generation < settings.generations - 1 else []
            )
            pool = self._distinct(keep + children + fresh)
        pool = self._untried(pool)
        if not pool:
            return [], np.zeros((0, len(self._shapes))), np.zeros((0, len(self._shapes)))
        gains, spread = self._gains(pool)
        return pool, gains, spread

    def _gains(self, pool: Sequence[MicroKernel]) -> tuple[Floats, Floats]:
        prediction = self._model.predict(pool, self._shapes)
        expected = prediction.latency_s * np.exp(-self._settings.optimism * prediction.spread)
        incumbent, handicap = self._incumbents(self._groups(pool), prediction.latency_s)
        # A trace of its own speed breaks ties between kernels that are expected to gain nothing.
        own = np.log(incumbent / expected)
        return np.maximum(own - handicap[:, None], 0.0) + 1e-3 * np.minimum(own, 0.0), prediction.spread

    def _incumbents(self, groups: Sequence[Hashable], predicted_s: Floats) -> tuple[Floats, Floats]:
        """For each kernel of the pool: the set's time at each instance, and how far its layout lags behind.

        Kernels of another packed layout cannot join the set. Theirs is a set of its own, which takes over only when it
        is better as a whole; until then its gains count less by as much as it lags.
        """
        best: dict[Hashable, Floats] = {}
        for kernel, group in zip(self._measured, self._groups(list(self._measured)), strict=True):
            times = best.setdefault(group, np.full(len(self._shapes), np.inf))
            for place, latency in self._measured[kernel].items():
                times[place] = min(times[place], latency)
        for group in dict.fromkeys(groups):
            members = [index for index, other in enumerate(groups) if other == group]
            floor = predicted_s[members].min(axis=0) * 1.02
            times = best.get(group, floor)
            best[group] = np.where(np.isinf(times), floor, times)
        totals = {group: float((np.log(best[group]) * self._weights).sum()) for group in dict.fromkeys(groups)}
        lead = min(totals.values())
        return np.stack([best[group] for group in groups]), np.array([0.5 * (totals[group] - lead) for group in groups])

    def _parents(self) -> list[MicroKernel]:
        """The fastest measured kernels of each instance."""
        parents: dict[MicroKernel, None] = {}
        for place in range(len(self._shapes)):
            parents |= dict.fromkeys(self._fastest(place, 4))
        return list(parents)

    def _fastest(self, place: int, count: int) -> list[MicroKernel]:
        """The fastest measured kernels of one instance."""
        timed = [(times[place], kernel) for kernel, times in self._measured.items() if place in times]
        return [kernel for _, kernel in sorted(timed, key=lambda pair: pair[0])[:count]]

    def _child(self, parents: Sequence[MicroKernel]) -> MicroKernel:
        first = parents[int(self._rng.integers(len(parents)))]
        if self._rng.random() < 0.3:
            second = parents[int(self._rng.integers(len(parents)))]
            first = self._space.crossover(first, second, self._rng)
        return self._space.mutate(first, self._rng)

    def _fresh(self, count: int) -> list[MicroKernel]:
        return [self._space.sample(self._rng) for _ in range(count)]

    def _distinct(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._failed]

    @property
    def _tried(self) -> set[MicroKernel]:
        return self._failed.union(self._measured, self._pending)

    def _untried(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        tried = self._tried
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in tried]

    def _groups(self, kernels: Sequence[MicroKernel]) -> list[Hashable]:
        return [self._rule.layout(self._task, kernel) for kernel in kernels]

    # -- what to measure ------------------------------------------------------------------------------------------
    def _instances_for(self, gains: Floats) -> list[int]:
        """The instances where the kernel is expected to gain most; one that gains nowhere goes to one of its best."""
        least = self._settings.least_gain
        order = (-gains * self._weights).argsort()[: self._settings.instances_per_kernel]
        helped = [int(place) for place in order if self._weights[place] > 0 and gains[place] > least]
        return sorted(helped or [int(order[0])])

    def _suggestions(self, picks: Sequence[Pick], trials: int) -> list[Suggestion]:
        return suggestions_of(self._task, self._model, picks, trials)
