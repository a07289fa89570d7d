"""The CostModel interface: expected latency of any (micro-kernel, shape) pair, and how sure the model is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.records import MeasureResult, TuningRecord
from tuner.schedule.space import MicroKernel


@dataclass(frozen=True, slots=True)
class WarmRecord:
    """A successful record of another search, for a model to start from.

    ``workload`` is in canonical form, and the record's instance in its symbols. ``weight``: beside 1 for a pair of the
    search itself. ``target`` is where it was measured, None for the target of the task.
    """

    workload: JsonObject
    record: TuningRecord
    weight: float
    target: Target | None = None


@dataclass(frozen=True)
class Prediction:
    """``latency_s`` and ``spread`` are [kernels, shapes]; ``spread`` is the standard deviation of log latency."""

    latency_s: NDArray[np.float64]
    spread: NDArray[np.float64]


class CostModel(Protocol):
    """Trained on every measured pair; before the first it is the analytic prior alone."""

    @property
    def theory(self) -> CostModel:
        """The analytic prior alone, whatever was learned since: the default of a task depends on nothing else."""

    @property
    def interval_coverage(self) -> float | None:
        """The share of this search's pairs whose time was within the 80 % interval that was predicted before they were
        measured; None before any was."""

    def at_speed(self, anchor_s: float) -> None:
        """Take latencies to be at the speed at which the device's anchor takes ``anchor_s`` from here on; called before
        the first update, if at all. What the model started from is taken to that speed."""

    def update(self, results: Sequence[MeasureResult]) -> None:
        """Train on these results too. Failed ones are ignored."""

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        """Predict the latency of every kernel at every shape (values of the shape variables)."""
