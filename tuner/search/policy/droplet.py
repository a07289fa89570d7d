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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tuner.program.task import SearchTask
from tuner.rules.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick
from tuner.search.policy.set_so_far import Turns
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import TheoryFirst, kernels_of_round


@dataclass(frozen=True, slots=True)
class DropletSettings:
    """When a kernel counts as faster, and how many are measured in a round."""

    threshold: float = 0.01
    """By which share of its time a kernel must be faster than the centre."""
    kernels_per_round: int = 8
    most_starts: int = 64
    """Kernels that may fail before a search that has nothing to start from ends."""
    theory: TheorySettings = field(default_factory=TheorySettings)


class DropletSearch(TheoryFirst):
    """Theory's set, then descents from the fastest of what was measured. Ends at a local optimum of each instance."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: DropletSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or DropletSettings()
        super().__init__(task, space, model, seed, self._settings.theory)
        self._turns = Turns(self._weights)
        self._centres: dict[int, MicroKernel] = {}
        """By instance; after a restart the fastest of what was measured."""
        self._around: dict[int, list[MicroKernel]] = {}
        """By instance the neighbours of the centre, in the order in which they are tried."""

    def _next(self, trials: int, devices: int) -> list[Pick]:
        count = kernels_of_round(self._settings.kernels_per_round, devices)
        standing = self._set.standing()
        if not any(standing):
            return self._starts(count)
        known = self._known
        open_ = {
            index: [kernel for kernel in self._neighbours(index, times) if kernel not in known]
            for index, times in enumerate(standing)
            if times and self._weights[index] > 0
        }
        return self._in_turn(open_, count)

    def _starts(self, count: int) -> list[Pick]:
        """Random kernels where all that was tried failed."""
        count = min(count, self._settings.most_starts - len(self._tried))
        return [(kernel, [self._turns.next()]) for kernel in self._drawn(max(0, count), self._known)]

    def _in_turn(self, open_: Mapping[int, list[MicroKernel]], count: int) -> list[Pick]:
        """Up to ``count`` of the kernels that are still to be tried at each instance."""
        picks: dict[MicroKernel, list[int]] = {}
        while len(picks) < count and (left := [index for index, kernels in open_.items() if kernels]):
            index = self._turns.next(left)
            picks.setdefault(open_[index].pop(0), []).append(index)
        return [(kernel, sorted(indices)) for kernel, indices in picks.items()]

    # -- a descent ------------------------------------------------------------------------------------------------
    def _neighbours(self, index: int, times: Mapping[MicroKernel, float]) -> list[MicroKernel]:
        """Around the centre of one instance. ``times``: log seconds of the kernels that were measured there."""
        centre, fastest = self._centres.get(index), min(times, key=times.__getitem__)
        if centre is None or self._is_faster(times[fastest], times.get(centre, math.inf)):
            self._centres[index] = fastest
            self._around[index] = self._ordered(fastest, axes_between(centre, fastest))
        return self._around[index]

    def _is_faster(self, one: float, other: float) -> bool:
        return one < other + math.log(1 - self._settings.threshold)

    def _ordered(self, centre: MicroKernel, first: Collection[str]) -> list[MicroKernel]:
        """The neighbours axis by axis: the axes of ``first``, then the others in random order."""
        steps = self._space.steps(centre)
        axes = list(dict.fromkeys(axis for axis, _ in steps))
        shuffled = [axes[index] for index in self._rng.permutation(len(axes))]
        order = sorted(shuffled, key=lambda axis: axis not in first)
        near = [kernel for axis in order for (own, _), kernel in steps.items() if own == axis]
        return list(dict.fromkeys(near))


def axes_between(one: MicroKernel | None, other: MicroKernel) -> frozenset[str]:
    """The axes in which two kernels of one rule differ; none for kernels of different rules."""
    if one is None or one.rule != other.rule:
        return frozenset()
    return frozenset(name for name, value in other.values if one[name] != value)
