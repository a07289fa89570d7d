"""What may become the library is timed side by side, where more than one kernel may be the fastest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tuner.program.language.workload import WorkloadInstance
from tuner.records import Phase
from tuner.schedule.space import MicroKernel
from tuner.search.chosen import Chosen
from tuner.search.context import SearchContext
from tuner.search.observations import latency_table
from tuner.search.policy import Suggestion
from tuner.search.trials import Trials

TIE_RATIO = 1.03
"""Finalists whose latencies are within this ratio of the fastest one's are timed once more."""
CONTESTED_RATIO = 1.15
"""Finalists within this ratio of the fastest one at an instance, by earlier readings or the model, are timed there."""
Point = tuple[WorkloadInstance, Sequence[MicroKernel]]
"""Kernels that are timed side by side, and where."""


class Finalists:
    """Times the best set, and alternatives to it, of what is ``chosen`` from."""

    def __init__(self, context: SearchContext, trials: Trials, chosen: Chosen) -> None:
        self._searched, self._model, self._budget = context.task.with_least_shape(), context.model, context.budget
        self._trials, self._measured, self._chosen = trials, trials.measured, chosen

    def expected_trials(self, best_set: Sequence[MicroKernel]) -> int:
        """Trials of the finalists, as it looks now, without those that are timed once more."""
        return _trials_of(self._contested(self._chosen.finalists(best_set)))

    def time(self, best_set: Sequence[MicroKernel], reserve_s: float) -> None:
        """All at one instance before the next: the machine's speed drifts more than finalists differ. Alternatives to
        the best set as far as the budget goes, of whose seconds ``reserve_s`` are left."""
        kernels = self._chosen.finalists(best_set)
        points, affordable = self._contested(kernels), self._trials.affordable(reserve_s)
        while len(kernels) > len(best_set) and _trials_of(points) > affordable:
            kernels = kernels[:-1]
            points = self._contested(kernels)
        self._chosen.only_from(kernels)
        self._run(points, reserve_s)
        # Those that are within noise of the fastest are timed once more, as far as the budget goes.
        ties = ((instance, self._ties(instance)) for instance in self._searched.instances)
        self._run([(instance, tied) for instance, tied in ties if len(tied) > 1], reserve_s)

    def _contested(self, kernels: Sequence[MicroKernel]) -> list[Point]:
        """The instances at which several of the kernels are expected to be about as fast, and these kernels."""
        instances = self._searched.instances
        shapes = [instance.shape for instance in instances]
        expected = latency_table(self._searched, self._model, self._measured, kernels, shapes)
        near = expected <= CONTESTED_RATIO * expected.min(axis=0)
        points = [
            (instance, list(itertools.compress(kernels, row))) for instance, row in zip(instances, near.T, strict=True)
        ]
        return [(instance, several) for instance, several in points if len(several) > 1]

    def _ties(self, instance: WorkloadInstance) -> list[MicroKernel]:
        """The finalists that are within TIE_RATIO of the fastest one at an instance."""
        times = {kernel: self._measured.latency_s(kernel, instance.values) for kernel in self._measured.finalists}
        least = min(filter(None, times.values()), default=0.0)
        return [kernel for kernel, time in times.items() if time and time <= TIE_RATIO * least]

    def _run(self, points: Sequence[Point], reserve_s: float) -> None:
        """Time these kernels at each instance, in this order, while more than ``reserve_s`` of the budget is left."""
        suggestions = []
        for instance, kernels in points:
            predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
            for kernel, latency in zip(kernels, predicted, strict=True):
                suggestions.append(Suggestion(kernel, (instance,), (float(latency),)))
        suggestions = suggestions[: max(0, self._trials.left())]
        if suggestions and self._budget.seconds_left(reserve_s) > 0:
            self._trials.in_steps(len(suggestions))
            self._trials.run(suggestions, Phase.FINAL, reserve_s)
            self._trials.in_steps(None)


def _trials_of(points: Sequence[Point]) -> int:
    return sum(len(kernels) for _, kernels in points)
