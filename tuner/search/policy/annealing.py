"""Simulated annealing over the cost model, as AutoTVM explores (Chen et al., "Learning to Optimize Tensor Programs",
NeurIPS 2018, section 3.3; ``SimulatedAnnealingOptimizer`` and ``ModelBasedTuner`` of TVM).

Chains walk the space by the times that the model expects, and keep their places from round to round. Of the best that
they came by a batch is measured: greedily the kernels that add most to ``sum of scores + diversity * values of axes
covered`` (the paper's equation 3, submodular), and a share of random ones (epsilon-greedy).

For a set: each chain belongs to one instance, with a share of the chains by the instance's weight, and goes by the log
of the kernel's time there and the penalty of its packed layout. In the batch a kernel's score is what the set of all
instances gains by it, whichever chain found it, and it is measured where it is expected to gain most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick
from tuner.search.policy.patience import Patience
from tuner.search.policy.set_so_far import Turns
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy, kernels_of_round

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AnnealingSettings:
    """How long and how hot, and what is measured of what was found."""

    chains: int = 64
    steps: int = 40
    """Steps of each chain in a round, a second of computing: about what the default policy takes. AutoTVM has 128
    chains and up to 500 steps, for batches of 64."""
    temperature: float = 0.2
    """The temperature at the start of a round, in log seconds; it falls to nothing, evenly."""
    kernels_per_round: int = 8
    candidates_per_kernel: int = 8
    """Candidates for each kernel that is measured, the best by their scores: the batch is picked among these."""
    random_share: float = 0.1
    """The random share of the batch; AutoTVM's is 0.05, of batches of 64."""
    diversity: float = 0.02
    """What a kernel is worth all of whose values no other of the batch has, in log seconds."""
    patience: int = 64
    """Kernels without a gain after which the search ends."""
    theory: TheorySettings = field(default_factory=TheorySettings)


class AnnealingSearch(BasePolicy):
    """Theory's set, then batches of what the chains found. Ends when its patience does."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: AnnealingSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or AnnealingSettings()
        super().__init__(task, space, model, seed, self._settings.theory)
        self._patience = Patience(task, self._settings.patience)
        turns = Turns(self._weights)
        self._instance_of = np.array([turns.next() for _ in range(self._settings.chains)])
        """The index of the instance that each chain belongs to, [chains]."""
        self._chains: list[MicroKernel] = []

    def update(self, results: Sequence[MeasureResult]) -> None:
        super().update(results)
        self._patience.add(results)

    def _next(self, trials: int, devices: int) -> list[Pick]:
        if self._patience.is_over:
            return []
        count = kernels_of_round(self._settings.kernels_per_round, devices)
        count_random = int(np.ceil(count * self._settings.random_share))
        picks = self._batch(self._anneal(), count - count_random)
        drawn = self._drawn(count_random, self._known | {kernel for kernel, _ in picks})
        return picks + (self._at_best(drawn) if drawn else [])

    # -- annealing ------------------------------------------------------------------------------------------------
    def _anneal(self) -> list[MicroKernel]:
        """Every untried kernel that a chain came by."""
        settings, failed, times = self._settings, self._failed, dict[MicroKernel, Floats]()
        self._chains = self._placed(failed)
        energy = self._energy(self._chains, times)
        for temperature in np.linspace(settings.temperature, 0.0, settings.steps, endpoint=False):
            moved = [self._space.mutate(kernel, self._rng) for kernel in self._chains]
            new = self._energy(moved, times)
            accepted = self._rng.random(len(new)) < np.exp(np.minimum(0.0, (energy - new) / temperature))
            for index in np.flatnonzero(accepted):
                if moved[index] not in failed:
                    self._chains[index], energy[index] = moved[index], new[index]
        tried = self._tried
        return [kernel for kernel in times if kernel not in tried]

    def _placed(self, failed: Collection[MicroKernel]) -> list[MicroKernel]:
        """The kernels where the chains begin: where they ended; at first, and where a kernel failed meanwhile, random
        ones. One chain of each instance begins at what is the fastest there."""
        chains = self._chains or self._random(self._settings.chains)
        chains = [self._space.sample(self._rng) if kernel in failed else kernel for kernel in chains]
        for instance_index in np.unique(self._instance_of):
            if fastest := self._set.fastest(int(instance_index), 1):
                chains[int(np.flatnonzero(self._instance_of == instance_index)[0])] = fastest[0]
        return chains

    def _energy(self, kernels: Sequence[MicroKernel], times: dict[MicroKernel, Floats]) -> Floats:
        """[chains]: log of the expected seconds of each chain's kernel at its instance, with the penalty of its layout.

        ``times`` has those of kernels that were asked about before, at all instances, and gets the others'.
        """
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in times]
        if new:
            times |= zip(new, self._set.log_seconds(new), strict=True)
        return np.array([times[kernel][at] for kernel, at in zip(kernels, self._instance_of, strict=True)])

    # -- the batch ------------------------------------------------------------------------------------------------
    def _batch(self, candidates: Sequence[MicroKernel], count: int) -> list[Pick]:
        """At most ``count`` of the candidates, the scores and the variety of which are the most in sum."""
        if not candidates:
            return []
        gains, _ = self._set.gains(candidates)
        scores = gains @ self._weights
        best = (-scores).argsort(kind="stable")[: self._settings.candidates_per_kernel * count]
        chosen = most_covering([candidates[index] for index in best], scores[best], count, self._settings.diversity)
        return [(candidates[best[index]], self._set.instances_for(gains[best[index]])) for index in chosen]

    def _at_best(self, kernels: Sequence[MicroKernel]) -> list[Pick]:
        gains, _ = self._set.gains(kernels)
        return [(kernel, self._set.instances_for(row)) for kernel, row in zip(kernels, gains, strict=True)]


def most_covering(kernels: Sequence[MicroKernel], scores: Floats, count: int, diversity: float) -> list[int]:
    """Indices of at most ``count`` kernels, picked one after another by their score and, times ``diversity``, the share
    of their values that none before them has. Greedy: at least 1 - 1/e of the most that can be had."""
    values = [{(kernel.rule, *pair) for pair in kernel.values} for kernel in kernels]
    covered: set[tuple[str, str, int]] = set()
    left = list(range(len(kernels)))
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = max(
            left, key=lambda index: scores[index] + diversity * len(values[index] - covered) / len(values[index])
        )
        left.remove(best)
        chosen.append(best)
        covered |= values[best]
    return chosen
