"""The SearchPolicy interface: two verbs, and a state that is rebuilt from results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import CostModel

KERNELS_PER_DEVICE = 3
"""The least kernels of a round for each device: the next round is computed while these are measured."""

Pick = tuple[MicroKernel, list[int]]
"""A kernel and the indices of the task's instances to measure it on."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A kernel to build, the instances to measure it on, and the latency expected at each."""

    kernel: MicroKernel
    instances: tuple[WorkloadInstance, ...]
    predicted_s: tuple[float, ...]


class SearchPolicy(Protocol):
    """Decides what to measure next. Deterministic: the same seed and the same calls give the same suggestions.

    A policy reads the cost model that it is made with and never trains it: the search loop does, before ``update``.
    """

    @property
    def theory(self) -> Sequence[MicroKernel]:
        """The kernel set that theory alone chooses, which the first suggestions measure: whatever the model knows of
        earlier searches, the default is the same."""

    def recall(self, wrong: Collection[MicroKernel], timed: Collection[MicroKernel]) -> None:
        """Take in what other searches of the workload found, before the first suggestion.

        Kernels that are ``wrong`` are never suggested. The model knows of those that were ``timed``: what is meant to
        try something unknown passes them over.
        """

    def suggest(self, trials: int, pending: Collection[MicroKernel] = (), devices: int = 1) -> list[Suggestion]:
        """What to measure next, at most ``trials`` (kernel, instance) pairs. Empty when nothing is expected to help.

        ``devices`` measure at the same time: the more there are, the more kernels keep them busy until the next call.

        The first suggestions are of theory's set, so that the default is measured at every instance; only results of
        ``Phase.KNOWN`` come before them. None of ``pending``: those are being measured, and ``update`` will be told of
        them later.
        """

    def update(self, results: Sequence[MeasureResult]) -> None:
        """Take in results, suggested by this policy or an earlier one with the same task."""


def suggestions_of(task: SearchTask, model: CostModel, picks: Sequence[Pick], trials: int) -> list[Suggestion]:
    """The first ``trials`` (kernel, instance) pairs of ``picks`` with the latencies that the model expects."""
    result = []
    for kernel, indices in picks:
        kept = indices[: max(0, trials)]
        trials -= len(kept)
        if kept:
            instances = tuple(task.instances[index] for index in kept)
            predicted = model.predict([kernel], [instance.shape for instance in instances]).latency_s[0]
            result.append(Suggestion(kernel, instances, tuple(float(latency) for latency in predicted)))
    return result
