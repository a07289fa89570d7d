"""The SearchPolicy interface: two verbs, and a state that is rebuilt from results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.program.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.rules.space import MicroKernel


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A kernel to build, the instances to measure it on, and the latency expected at each."""

    kernel: MicroKernel
    instances: tuple[WorkloadInstance, ...]
    predicted_s: tuple[float, ...]


class SearchPolicy(Protocol):
    """Decides what to measure next. Deterministic: the same seed and the same calls give the same suggestions."""

    def suggest(self, trials: int, pending: Collection[MicroKernel] = ()) -> list[Suggestion]:
        """What to measure next, at most ``trials`` (kernel, instance) pairs. Empty when nothing is expected to help.

        None of ``pending``: those are being measured, and ``update`` will be told of them later.
        """

    def update(self, results: Sequence[MeasureResult]) -> None:
        """Take in results, suggested by this policy or an earlier one with the same task."""
