"""log latency(kernel, shape) = log of the analytic prior + a residual learned from raw pair times.

DietCode (MLSys 2022, section 4) divides each measured speed by its analytic penalties and learns what is left as the
kernel's own: an error of the penalties is part of the label. Here the residual sees kernel and shape together, so a
wrong prior is corrected where it is wrong. The residual is the mean of a few XGBoost models on bootstrap samples; their
disagreement is the spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import xgboost
from numpy.typing import NDArray

from tuner.program.build import workload_from_json
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject, ShapeVar, Workload
from tuner.records import MeasureResult, TuningRecord
from tuner.rules import Extents, Refused, by_rule, is_current, rule_of, rules_of
from tuner.rules.space import MicroKernel
from tuner.search.cost_model._base import Prediction

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
WARM_WEIGHT = 0.3
"""The weight of a pair of another job; one of this job has weight 1."""
MAX_WARM_PAIRS = 3000
"""Pairs of other jobs that the model is trained on, the first of those given: more make each fit seconds longer."""


def extents_of(workload: Workload, shapes: Sequence[Mapping[str, int]]) -> Extents:
    """The extents of every axis at these shapes (values of the shape variables), as arrays."""
    rows = [workload.axis_sizes(workload.dims(shape)) for shape in shapes]
    return {axis: np.array([row[axis] for row in rows], np.int64) for axis in workload.program.axes}


class PairCostModel:
    """The cost model of one search task. ``warm`` are records of other jobs on the same target, newest first.

    Rules describe their kernels by features of their own, so each rule of the task has a residual of its own.
    """

    def __init__(self, task: SearchTask, seed: int = 0, warm: Sequence[tuple[JsonObject, TuningRecord]] = ()) -> None:
        self._task = task
        self._rules = {rule.name: rule for rule in rules_of(task)}
        self._residuals = {name: _Residual(seed) for name in self._rules}
        tasks: dict[str, SearchTask | None] = {}
        for workload_json, record in warm[:MAX_WARM_PAIRS]:
            self._learn_warm(tasks, workload_json, record)

    @property
    def pairs(self) -> int:
        """How many measured pairs the model knows, those of other jobs included."""
        return sum(residual.pairs for residual in self._residuals.values())

    def update(self, results: Sequence[MeasureResult]) -> None:
        for result in results:
            if result.latency_s is not None:
                self._learn(self._task, result.kernel, result.instance.shape, result.latency_s, 1.0)

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        extents = extents_of(self._task.workload, shapes)
        latency_s, spread = np.empty((2, len(kernels), len(shapes)))
        for rule, rows in by_rule(kernels):
            own = [kernels[row] for row in rows]
            prior = np.log(rule.prior_latency_s(self._task, own, extents))
            features = partial(rule.features, self._task, own, extents)
            residual, error = self._residuals[rule.name].predict(features, prior.shape)
            latency_s[rows], spread[rows] = np.exp(prior + residual), error
        return Prediction(latency_s, spread)

    def _learn(
        self, task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int], latency_s: float, weight: float
    ) -> None:
        rule, extents = self._rules[kernel.rule], extents_of(task.workload, [shape])
        prior = rule.prior_latency_s(task, [kernel], extents)[0, 0]
        features = rule.features(task, [kernel], extents)[0, 0]
        self._residuals[kernel.rule].learn(features, float(np.log(latency_s) - np.log(prior)), weight)

    def _learn_warm(
        self, tasks: dict[str, SearchTask | None], workload_json: JsonObject, record: TuningRecord
    ) -> None:
        """Learn from a record of another workload, in its symbols.

        One of a rule, or a version of it, that this task does not use is left out.
        """
        kernel, latency_s = record.result.kernel, record.result.latency_s
        if latency_s is None or kernel.rule not in self._rules or not is_current(kernel):
            return
        if record.workload_key not in tasks:
            tasks[record.workload_key] = _similar_task(workload_from_json(workload_json), self._task, kernel, record)
        if (task := tasks[record.workload_key]) is not None:
            self._learn(task, kernel, record.result.instance.shape, latency_s, WARM_WEIGHT)


class _Residual:
    """What one rule's prior misses, in log latency: a constant, then the mean of a few boosted models."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inputs: list[NDArray[np.float32]] = []
        self._targets: list[float] = []
        self._weights: list[float] = []
        self._boosters: list[xgboost.Booster] = []
        self._constant = 0.0
        self._stale = False

    @property
    def pairs(self) -> int:
        return len(self._targets)

    def learn(self, features: NDArray[np.float32], target: float, weight: float) -> None:
        self._inputs.append(features)
        self._targets.append(target)
        self._weights.append(weight)
        self._stale = True

    def predict(
        self, features: Callable[[], NDArray[np.float32]], shape: tuple[int, ...]
    ) -> tuple[NDArray[np.float64] | float, NDArray[np.float64] | float]:
        """The residual and its spread, [kernels, shapes]; ``features()`` is asked for only where there are models."""
        if self._stale:
            self._fit()
        if not self._boosters:
            return self._constant, UNKNOWN_SPREAD
        data = _matrix(features().reshape(math.prod(shape), -1))
        votes = np.stack([booster.predict(data).reshape(shape) for booster in self._boosters])
        return self._constant + votes.mean(axis=0), votes.std(axis=0)

    def _fit(self) -> None:
        """Put off to the next prediction: several batches may come in between two of them."""
        self._stale = False
        targets = np.array(self._targets)
        self._constant = float(np.median(targets))
        self._boosters = []
        if len(targets) < MIN_PAIRS:
            return
        inputs, weights = np.stack(self._inputs), np.array(self._weights)
        rng = np.random.default_rng(self._seed)
        for index in range(MODELS):
            counts = rng.multinomial(len(targets), np.full(len(targets), 1 / len(targets)))
            data = _matrix(inputs, targets - self._constant, weights * np.maximum(counts, 0.1))
            parameters = PARAMETERS | {"seed": self._seed * MODELS + index}
            self._boosters.append(xgboost.train(parameters, data, ROUNDS))


def _matrix(inputs: NDArray[np.float32], *labels_and_weights: NDArray[np.float64]) -> xgboost.DMatrix:
    """On one thread, as the models are: waking others for a few thousand rows takes twenty times as long."""
    label, weight = labels_and_weights or (None, None)
    return xgboost.DMatrix(inputs, label, weight=weight, nthread=1)


def _similar_task(workload: Workload, like: SearchTask, kernel: MicroKernel, record: TuningRecord) -> SearchTask | None:
    """A task around another workload, for its features alone: same target and threads, the record's one shape.

    None where the kernel's rule does not take that workload any more.
    """
    variables = tuple(ShapeVar(name, (value,)) for name, value in record.result.instance.values)
    task = SearchTask(workload, shape_vars=variables, instances=None, target=like.target, threads=record.threads)
    if isinstance(rule_of(kernel).match(workload, like.known_target), Refused):
        return None
    return task
