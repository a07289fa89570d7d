"""What a rule's theory misses, learned from measured pairs, and how far off the prediction is likely to be."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
import xgboost
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[np.float32]

MIN_PAIRS = 12
"""Below this many pairs the residual is one constant: the median."""
MODELS = 3
PARAMETERS = {
    "max_depth": 5,
    "eta": 0.15,
    "subsample": 0.9,
    "colsample_bytree": 0.7,
    "min_child_weight": 2.0,
    "nthread": 1,
}
ROUNDS = 80
UNKNOWN_SPREAD = 0.3
"""Standard deviation of log latency, while there are no models that could disagree."""
MIN_SPREAD = 0.02
"""The least spread of log latency: two readings of one kernel differ by it, however much the models agree."""
INTERVAL, INTERVAL_SPREADS = 0.8, 1.2816
"""The central interval of a normal distribution that holds this share of it, in standard deviations either side."""
MIN_SURPRISES, MAX_SURPRISES = 12, 96
"""Predictions that were put to the test: fewer say nothing of the spread, and older ones are of a model that knew
less."""


class Residual:
    """What one rule's theory misses, in log latency: a constant, then the mean of a few boosted models.

    The models' disagreement says where they know little, not how far off they are. So each pair is predicted before it
    is learned, and the spread is scaled such that the interval of ``INTERVAL`` would have held that share of the last
    of them: split conformal prediction (Lei et al., JASA 2018, section 2) with pairs to come in place of a set aside.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._features: list[Features] = []
        self._targets: list[float] = []
        self._weights: list[float] = []
        self._boosters: list[xgboost.Booster] = []
        self._constant = 0.0
        self._stale = False
        self._surprises: deque[float] = deque(maxlen=MAX_SURPRISES)
        """Errors in spreads before scaling."""
        self.tested = self.covered = 0
        """Pairs that were predicted before they were measured, and those of them within the interval."""

    @property
    def pairs(self) -> int:
        return len(self._targets)

    def learn(self, features: Features, targets: Floats, weight: float) -> None:
        """``features`` [pairs, features]; ``targets`` [pairs]: logs of the measured times over theory's."""
        self._features.extend(features)
        self._targets.extend(targets.tolist())
        self._weights.extend([weight] * len(targets))
        self._stale = True

    def forget(self) -> None:
        """Pairs alone: how far predictions were off stays known."""
        self._features, self._targets, self._weights, self._boosters = [], [], [], []
        self._stale = True

    def test(self, features: Features, targets: Floats) -> None:
        """See how far the models as they were last trained are off at pairs that they have not learned."""
        if not self._boosters or not len(targets):
            return
        mean, spread = self._votes(features)
        for error, expected in zip(np.abs(targets - mean).tolist(), spread.tolist(), strict=True):
            self.tested += 1
            self.covered += error <= INTERVAL_SPREADS * expected * self._scale
            self._surprises.append(error / expected)

    def predict(
        self, features: Callable[[], Features], shape: tuple[int, ...]
    ) -> tuple[Floats | float, Floats | float]:
        """The residual and its spread, [kernels, shapes]; ``features()`` is called only where there are models."""
        if self._stale:
            self._fit()
        if not self._boosters:
            return self._constant, UNKNOWN_SPREAD
        mean, spread = self._votes(features().reshape(math.prod(shape), -1))
        return mean.reshape(shape), spread.reshape(shape) * self._scale

    @property
    def _scale(self) -> float:
        if len(self._surprises) < MIN_SURPRISES:
            return 1.0
        return float(np.quantile(self._surprises, INTERVAL)) / INTERVAL_SPREADS

    def _votes(self, inputs: Features) -> tuple[Floats, Floats]:
        """The mean of the models and their spread before scaling, [pairs]."""
        votes = np.stack([booster.inplace_predict(inputs) for booster in self._boosters]).astype(np.float64)
        return self._constant + votes.mean(axis=0), np.hypot(votes.std(axis=0), MIN_SPREAD)

    def _fit(self) -> None:
        """Put off to the next prediction: several batches may come in between two of them."""
        self._stale = False
        targets = np.array(self._targets)
        self._constant = float(np.median(targets)) if len(targets) else 0.0
        self._boosters = []
        if len(targets) < MIN_PAIRS:
            return
        inputs, weights = np.stack(self._features), np.array(self._weights)
        rng = np.random.default_rng(self._seed)
        for index in range(MODELS):
            counts = rng.multinomial(len(targets), np.full(len(targets), 1 / len(targets)))
            label, weight = targets - self._constant, weights * np.maximum(counts, 0.1)
            # On one thread, as the models are: waking others for a few thousand rows takes twenty times as long.
            data = xgboost.DMatrix(inputs, label, weight=weight, nthread=1)
            parameters = PARAMETERS | {"seed": self._seed * MODELS + index}
            self._boosters.append(xgboost.train(parameters, data, ROUNDS))
