"""Coordinate descent from the best known kernels, as Droplet search (Canesche et al., "The Droplet Search Algorithm for
Kernel Scheduling", ACM TACO 2024; ``DropletTuner`` of TVM, and Ansor's ``post_opt``).

Around the best kernel its neighbours along one axis after another are measured. One that is clearly faster becomes the
centre, and its neighbours come next, first those along the axis that helped. Where none is, the descent has ended. No
cost model is asked.

The original tests with the samples of two trials whether their means differ (p < 0.05). Those are taken within
milliseconds, so they say nothing of the drift between two trials; here a kernel is faster if its median is by a
threshold. The search loop measures what leads three times, so this is no test of single readings.

For a set: one descent for each instance that has a weight, from the fastest kernel there (the penalty of its packed
layout counted), all in turn by weight. A kernel that is the neighbour of several centres is measured for all of them.
The search ends when every descent has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick
from tuner.search.policy.set_so_far import Floats, Turns
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy, kernels_of_round


@dataclass(frozen=True, slots=True)
class DropletSettings:
    """When a kernel counts as faster, and how many are measured in a round."""

    threshold: float = 0.01
    """The share of its time by which a kernel must be faster than the centre."""
    kernels_per_round: int = 8
    most_starts: int = 64
    """Kernels that may fail before a search that has nothing to start from ends."""
    theory: TheorySettings = field(default_factory=TheorySettings)


class Descents:
    """One descent for each instance that has a weight, from the fastest kernel there, all in turn by weight."""

    def __init__(
        self, space: KernelSpace, standing: Callable[[], Sequence[Mapping[MicroKernel, float]]], weights: Floats,
        rng: np.random.Generator, threshold: float,
    ) -> None:  # fmt: skip
        """``standing``: as of ``Incumbents``. ``threshold``: by which share of its time a kernel must be faster than
        the centre to take its place."""
        self._space, self._standing, self._weights, self._rng = space, standing, weights, rng
        self._threshold = threshold
        self.turns = Turns(weights)
        self._centres: dict[int, MicroKernel] = {}
        """The centre at each instance; after a restart the fastest kernel that was measured."""
        self._around: dict[int, list[MicroKernel]] = {}
        """The neighbours of the centre at each instance, in the order in which they are tried."""

    def next(self, count: int, known: Collection[MicroKernel]) -> list[Pick]:
        """Up to ``count`` kernels beside the centres that are not ``known``, with the instances to measure them on;
        none where every descent has ended."""
        open_ = {
            index: [kernel for kernel in self._neighbours(index, times) if kernel not in known]
            for index, times in enumerate(self._standing())
            if times and self._weights[index] > 0
        }
        picks: dict[MicroKernel, list[int]] = {}
        while len(picks) < count and (left := [index for index, kernels in open_.items() if kernels]):
            index = self.turns.next(left)
            picks.setdefault(open_[index].pop(0), []).append(index)
        return [(kernel, sorted(indices)) for kernel, indices in picks.items()]

    def _neighbours(self, index: int, times: Mapping[MicroKernel, float]) -> list[MicroKernel]:
        """The neighbours of one instance's centre. ``times``: log seconds of the kernels that were measured there."""
        centre, fastest = self._centres.get(index), min(times, key=times.__getitem__)
        if centre is None or self._is_faster(times[fastest], times.get(centre, math.inf)):
            self._centres[index] = fastest
            self._around[index] = self._ordered(fastest, axes_between(centre, fastest))
        return self._around[index]

    def _is_faster(self, one: float, other: float) -> bool:
        return one < other + math.log(1 - self._threshold)

    def _ordered(self, centre: MicroKernel, first: Collection[str]) -> list[MicroKernel]:
        """The neighbours axis by axis: the axes of ``first``, then the others in random order."""
        steps = self._space.steps(centre)
        axes = list(dict.fromkeys(axis for axis, _ in steps))
        shuffled = [axes[index] for index in self._rng.permutation(len(axes))]
        order = sorted(shuffled, key=lambda axis: axis not in first)
        near = [kernel for axis in order for (own, _), kernel in steps.items() if own == axis]
        return list(dict.fromkeys(near))


class DropletSearch(BasePolicy):
    """Theory's set, then descents from the fastest of what was measured. Ends at a local optimum of each instance."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: DropletSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or DropletSettings()
        super().__init__(task, space, model, seed, self._settings.theory)
        self._descents = Descents(space, self._set.standing, self._weights, self._rng, self._settings.threshold)

    def _next(self, trials: int, devices: int) -> list[Pick]:
        count = kernels_of_round(self._settings.kernels_per_round, devices)
        if not self._measured.kernels:
            return self._starts(count)
        return self._descents.next(count, self._known)

    def _starts(self, count: int) -> list[Pick]:
        """Random kernels where all that was tried failed."""
        count = min(count, self._settings.most_starts - len(self._tried))
        return [(kernel, [self._descents.turns.next()]) for kernel in self._drawn(max(0, count), self._known)]


def axes_between(one: MicroKernel | None, other: MicroKernel) -> frozenset[str]:
    """The axes in which two kernels of one rule differ, of those that both have; none for kernels of different
    rules."""
    if one is None or one.rule != other.rule:
        return frozenset()
    # Not every kernel has all axes of its rule.
    return frozenset(name for name, value in other.values if one.get(name, value) != value)
