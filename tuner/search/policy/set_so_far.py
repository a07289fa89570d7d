"""The set as it stands: how fast it is at each instance, and what a further kernel would add to it.

Kernels of one library share the packed layouts of its constants. So there is a set for each layout, and what takes a
slower one further counts less: by half of what that set is slower as a whole (log latency).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule import layout_group
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import CostModel, Prediction
from tuner.search.observations import Measured

Floats = NDArray[np.float64]

INSTANCES_PER_KERNEL = 2
MIN_GAIN = 0.003
"""The weighted gain in log latency that is worth a trial."""
OPTIMISM = 0.5
"""Standard deviations of log latency that a candidate is given the benefit of."""


class Incumbents:
    """What ``measured`` and ``model`` say now. ``weights``: [instances], one in sum."""

    def __init__(self, task: SearchTask, model: CostModel, measured: Measured, weights: Floats) -> None:
        self._task, self._model, self._measured, self._weights = task, model, measured, weights
        self._shapes = [instance.shape for instance in task.instances]
        self._index_of = {instance.values: index for index, instance in enumerate(task.instances)}
        self._layout_of: dict[MicroKernel, Hashable] = {}

    def gains(self, pool: Sequence[MicroKernel], optimism: float = OPTIMISM) -> tuple[Floats, Floats]:
        """[kernels, instances] each: the expected gain of the set (log of its time over the kernel's, 0 if slower) and
        the spread of the model."""
        log_s, prediction = self._expected(pool, optimism)
        incumbent, penalty = self._incumbents(self.layouts(pool), prediction.latency_s)
        # A trace of its own speed breaks ties between kernels that are expected to gain nothing.
        own = np.log(incumbent) - log_s
        return np.maximum(own - penalty[:, None], 0.0) + 1e-3 * np.minimum(own, 0.0), prediction.spread

    def log_seconds(self, pool: Sequence[MicroKernel], optimism: float = OPTIMISM) -> Floats:
        """[kernels, instances]: log of the expected seconds, the penalty of each kernel's layout added."""
        log_s, prediction = self._expected(pool, optimism)
        return log_s + self._incumbents(self.layouts(pool), prediction.latency_s)[1][:, None]

    def _expected(self, pool: Sequence[MicroKernel], optimism: float) -> tuple[Floats, Prediction]:
        prediction = self._model.predict(pool, self._shapes)
        return np.log(prediction.latency_s) - optimism * prediction.spread, prediction

    def instances_for(self, gains: Floats, least_gain: float = MIN_GAIN, most: int = INSTANCES_PER_KERNEL) -> list[int]:
        """The instances where a kernel with these gains ([instances]) is expected to gain most; one that gains nowhere
        goes to one of its best."""
        order = np.where(self._weights > 0, -gains * self._weights, np.inf).argsort()[:most]
        helped = [int(index) for index in order if self._weights[index] > 0 and gains[index] > least_gain]
        return sorted(helped or [int(order[0])])

    def fastest(self, index: int, count: int) -> list[MicroKernel]:
        """The fastest measured kernels of one instance."""
        times = self._measured.latencies_at(self._task.instances[index])
        return sorted(times, key=lambda kernel: times[kernel])[:count]

    def standing(self) -> list[dict[MicroKernel, float]]:
        """The log of the measured seconds of each kernel, the penalty of its layout added, for each instance."""
        kernels = self._measured.kernels
        if not kernels:
            return [{} for _ in self._shapes]
        predicted_s = self._model.predict(kernels, self._shapes).latency_s
        penalties = dict(zip(kernels, self._incumbents(self.layouts(kernels), predicted_s)[1], strict=True))
        return [
            {kernel: float(np.log(time) + penalties[kernel]) for kernel, time in times.items()}
            for times in (self._measured.latencies_at(instance) for instance in self._task.instances)
        ]

    def _incumbents(self, layouts: Sequence[Hashable], predicted_s: Floats) -> tuple[Floats, Floats]:
        """The set's time at each instance, and the penalty of its layout (log latency), for each kernel of a pool.

        Kernels of another packed layout cannot join the set. Theirs is a set of its own, which takes over only when it
        is better as a whole.
        """
        best = self._best_by_layout()
        for layout in dict.fromkeys(layouts):
            members = [index for index, other in enumerate(layouts) if other == layout]
            floor = predicted_s[members].min(axis=0) * 1.02
            times = best.get(layout, floor)
            best[layout] = np.where(np.isinf(times), floor, times)
        penalties = layout_penalties({layout: best[layout] for layout in dict.fromkeys(layouts)}, self._weights)
        return np.stack([best[layout] for layout in layouts]), np.array([penalties[layout] for layout in layouts])

    def _best_by_layout(self) -> dict[Hashable, Floats]:
        """The least measured latency at each instance, infinite where there is none, by packed layout."""
        kernels = self._measured.kernels
        best: dict[Hashable, Floats] = {}
        for kernel, layout in zip(kernels, self.layouts(kernels), strict=True):
            times = best.setdefault(layout, np.full(len(self._shapes), np.inf))
            for shape, latency in self._measured.latencies_of(kernel).items():
                if (index := self._index_of.get(shape)) is not None:
                    times[index] = min(times[index], latency)
        return best

    def layouts(self, kernels: Sequence[MicroKernel]) -> list[Hashable]:
        """The packed layouts of each kernel: those of one set are equal."""
        for kernel in kernels:
            if kernel not in self._layout_of:
                self._layout_of[kernel] = layout_group(self._task, kernel)
        return [self._layout_of[kernel] for kernel in kernels]


class JointGains:
    """What candidates add to the set beside those that were taken before: one that serves the same instances adds
    nothing more. The joint gain is submodular, so that greedy choice is within 1 - 1/e of the best one (Nemhauser,
    Wolsey and Fisher 1978).

    ``gains`` [kernels, instances] of each alone; ``layouts`` of the kernels: others are of other sets.
    """

    def __init__(self, gains: Floats, weights: Floats, layouts: Sequence[Hashable]) -> None:
        self._gains, self._weights, self._layouts = gains, weights, layouts
        self._best: dict[Hashable, Floats] = {}
        self._taken: list[int] = []

    def take(self, instance: int | None = None) -> tuple[int, Floats]:
        """Take the candidate that adds most: in all, or at one instance. Its index, and what it adds at each instance,
        with a trace of what it would gain alone."""
        nothing = np.zeros(len(self._weights))
        best = np.stack([self._best.get(layout, nothing) for layout in self._layouts])
        added = np.maximum(self._gains - best, 0.0)
        # Where nothing is left to add, the next best goes on.
        scores = added + 1e-3 * self._gains
        total = scores @ self._weights if instance is None else scores[:, instance]
        total[self._taken] = -np.inf
        index = int(total.argmax())
        layout = self._layouts[index]
        self._taken.append(index)
        self._best[layout] = np.maximum(self._best.get(layout, nothing), self._gains[index])
        return index, scores[index]


def layout_penalties(best: dict[Hashable, Floats], weights: Floats) -> dict[Hashable, float]:
    """Penalties by layout: half of what its best times ([instances], seconds) are slower than those of the best layout,
    in weighted log latency."""
    totals = {layout: float((np.log(times) * weights).sum()) for layout, times in best.items()}
    least = min(totals.values())
    return {layout: 0.5 * (total - least) for layout, total in totals.items()}


class Turns:
    """Instances in turn, each as often as its weight says: always the one that is furthest behind its share
    (D'Hondt's method). Those without weight have no turn."""

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        self._had = np.zeros(len(weights))

    def next(self, among: Sequence[int] | None = None) -> int:
        """The index of the instance whose turn it is; ``among``: of these alone, at least one."""
        rates = self._weights / (self._had + 1)
        index = int(rates.argmax()) if among is None else max(among, key=lambda at: float(rates[at]))
        self._had[index] += 1
        return index
