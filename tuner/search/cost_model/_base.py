"""The CostModel interface: expected latency of any (micro-kernel, shape) pair, and how sure the model is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.records import MeasureResult
from tuner.rules.space import MicroKernel


@dataclass(frozen=True)
class Prediction:
    """``latency_s`` and ``spread`` are [kernels, shapes]; ``spread`` is the standard deviation of log latency."""

    latency_s: NDArray[np.float64]
    spread: NDArray[np.float64]


class CostModel(Protocol):
    """Trained on every measured pair; before the first it is the analytic prior alone."""

    def update(self, results: Sequence[MeasureResult]) -> None:
        """Train on these results too. Failed ones are ignored."""

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        """For every kernel at every shape (values of the shape variables)."""
