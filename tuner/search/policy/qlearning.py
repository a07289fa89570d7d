"""Q-learning over the directions of the space, as FlexTensor explores (Zheng et al., ASPLOS 2020; ``WalkerGroup`` of
its code).

A round takes starting points among the kernels that were measured, a fast one more likely than a slow one:
``exp(-gamma * (its time - the best) / the best)``, the heuristic of the paper. From each it takes one step, in the
direction that the Q function values most or, with a probability that falls from 0.8 to 0.1 over the trials, in a random
one. The new kernel is measured; what it gained is the reward, and the Q function is fitted anew. FlexTensor's is a
network of four layers for each part of the space, trained for every operator; here it is linear
(tuner/search/policy/q_function.py), because a search of a few hundred trials has no more to say. No cost model chooses
the steps.

For a set: every step is of one instance, whose turn it is by its weight. Starting points are those that were measured
there, the penalty of their packed layouts counted, and so are rewards; one Q function for each rule has the shape as an
input, so that instances learn from one another. A new kernel is also measured at the one other instance where the cost
model expects the set to gain by it, if there is one: otherwise no kernel would ever come to serve two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult
from tuner.schedule.space import KernelSpace, MicroKernel, Step
from tuner.search.cost_model import CostModel
from tuner.search.observations import log_points
from tuner.search.policy._base import Pick
from tuner.search.policy.patience import Patience
from tuner.search.policy.q_function import Floats, QFunction, Transition
from tuner.search.policy.set_so_far import MIN_GAIN, Turns
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy, kernels_of_round

Standing = Sequence[Mapping[MicroKernel, float]]
"""The log seconds of the kernels that were measured at each instance."""


@dataclass(frozen=True, slots=True)
class QLearningSettings:
    """Values of FlexTensor's code, but for ``gamma``: its starting points are kernels of which most are far slower."""

    gamma: float = 5.0
    """How much less likely a slower kernel is to be started from."""
    discount: float = 0.9
    epsilon: float = 0.8
    """The share of random directions at the start."""
    epsilon_decay: float = 0.01
    """The exponential rate at which epsilon falls with each trial."""
    least_epsilon: float = 0.1
    failure: float = -1.0
    """The reward of a kernel that failed, in log seconds."""
    kernels_per_round: int = 8
    patience: int = 64
    """Kernels without a gain after which the search ends."""
    theory: TheorySettings = field(default_factory=TheorySettings)


class QLearningSearch(BasePolicy):
    """Theory's set, then a step from each of a few starting points. Ends when its patience does."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: QLearningSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or QLearningSettings()
        super().__init__(task, space, model, seed, self._settings.theory)
        self._patience, self._turns = Patience(task, self._settings.patience), Turns(self._weights)
        self._points = _scaled(log_points(task, self._shapes))
        self._steps: dict[MicroKernel, dict[Step, MicroKernel]] = {}
        """The steps of kernels that were measured."""

    def update(self, results: Sequence[MeasureResult]) -> None:
        super().update(results)
        self._patience.add(results)

    def _next(self, trials: int, devices: int) -> list[Pick]:
        if self._patience.is_over:
            return []
        standing, without = self._set.standing(), set(self._known)
        value = self._fitted(standing)
        picks: dict[MicroKernel, list[int]] = {}
        for _ in range(kernels_of_round(self._settings.kernels_per_round, devices)):
            index = self._turns.next()
            kernel = self._stepped(index, standing[index], value, without) or self._random_one(without)
            if kernel is not None:
                without.add(kernel)
                picks[kernel] = self._places(kernel, index)
        return list(picks.items())

    # -- one step -------------------------------------------------------------------------------------------------
    def _stepped(
        self, index: int, times: Mapping[MicroKernel, float], value: Mapping[str, QFunction],
        without: Collection[MicroKernel],
    ) -> MicroKernel | None:  # fmt: skip
        """An untried kernel a step from one that was measured at the instance; None if there is no such step."""
        for start in self._starts(times):
            steps = {step: near for step, near in self._steps_of(start).items() if near not in without}
            if steps:
                return steps[self._direction(start, list(steps), index, value)]
        return None

    def _starts(self, times: Mapping[MicroKernel, float]) -> list[MicroKernel]:
        """The kernels in random order, fast ones likely to come first."""
        if not times:
            return []
        kernels, logs = list(times), np.array(list(times.values()))
        slower = np.exp(logs - logs.min()) - 1
        # Drawn one after another without replacement by these weights (Efraimidis and Spirakis, 2006), in logarithms:
        # weights of very slow kernels are too small for a float.
        keys = np.log(self._rng.exponential(size=len(kernels))) + self._settings.gamma * slower
        return [kernels[at] for at in keys.argsort(kind="stable")]

    def _direction(self, start: MicroKernel, steps: list[Step], index: int, value: Mapping[str, QFunction]) -> Step:
        settings = self._settings
        decayed = settings.epsilon * math.exp(-settings.epsilon_decay * self._measured.trials)
        if start.rule not in value or self._rng.random() < max(decayed, settings.least_epsilon):
            return steps[int(self._rng.integers(len(steps)))]
        return steps[int(value[start.rule].values(start, steps, index).argmax())]

    def _random_one(self, without: Collection[MicroKernel]) -> MicroKernel | None:
        """A random kernel, for where nothing was measured that a step could be taken from."""
        return next(iter(self._drawn(1, without)), None)

    def _places(self, kernel: MicroKernel, index: int) -> list[int]:
        gains = self._set.gains([kernel])[0][0]
        others = [at for at in self._set.instances_for(gains) if at != index and gains[at] > MIN_GAIN]
        return sorted([index, *others[:1]])

    # -- learning -------------------------------------------------------------------------------------------------
    def _fitted(self, standing: Standing) -> dict[str, QFunction]:
        """Q functions by rule, fitted to all steps that were measured at both ends."""
        by_rule: dict[str, list[Transition]] = {}
        for each in self._transitions(standing):
            by_rule.setdefault(each.kernel.rule, []).append(each)
        functions = {rule: QFunction(self._space, self._points, self._settings.discount) for rule in by_rule}
        for rule, function in functions.items():
            function.fit(by_rule[rule])
        return functions

    def _transitions(self, standing: Standing) -> list[Transition]:
        failed, transitions = self._failed, []
        for index, times in enumerate(standing):
            for kernel, time in times.items():
                for step, after in self._steps_of(kernel).items():
                    if after in times:
                        transitions.append(Transition(kernel, step, after, index, time - times[after]))
                    elif after in failed:
                        transitions.append(Transition(kernel, step, after, index, self._settings.failure))
        return transitions

    def _steps_of(self, kernel: MicroKernel) -> dict[Step, MicroKernel]:
        if kernel not in self._steps:
            self._steps[kernel] = self._space.steps(kernel)
        return self._steps[kernel]


def _scaled(points: Floats) -> Floats:
    """[instances, dims]: each dim from 0 to 1."""
    low, spread = points.min(axis=0), np.ptp(points, axis=0)
    return np.asarray((points - low) / np.where(spread > 0, spread, 1.0))
