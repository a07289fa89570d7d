"""log latency(kernel, shape) = log of the analytic prior + a residual learned from raw pair times.

DietCode (MLSys 2022, section 4) divides each measured speed by its analytic penalties and learns what is left as the
kernel's own: an error of the penalties is part of the label. Here the residual sees kernel and shape together, so a
wrong prior is corrected where it is wrong. The residual is the mean of a few XGBoost models on bootstrap samples; their
disagreement is the spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xgboost
from numpy.typing import NDArray

from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject, ShapeVar, Workload
from tuner.records import MeasureResult, TuningRecord
from tuner.rules import Extents, rule_for
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
    """The extents of every axis at these shapes, as arrays."""
    rows = [workload.extents(shape) for shape in shapes]
    return {axis: np.array([row[axis] for row in rows], np.int64) for axis in workload.op.args}


class PairCostModel:
    """The cost model of one search task. ``warm`` are records of other jobs on the same target, newest first."""

    def __init__(self, task: SearchTask, seed: int = 0, warm: Sequence[tuple[JsonObject, TuningRecord]] = ()) -> None:
        self._task, self._seed = task, seed
        self._rule = rule_for(task.workload)
        self._inputs: list[NDArray[np.float32]] = []
        self._residuals: list[float] = []
        self._weights: list[float] = []
        self._boosters: list[xgboost.Booster] = []
        self._constant = 0.0
        tasks: dict[str, SearchTask] = {}
        for workload_json, record in warm[:MAX_WARM_PAIRS]:
            self._learn_warm(tasks, workload_json, record)
        self._stale = bool(self._residuals)

    @property
    def pairs(self) -> int:
        """How many measured pairs the model knows, those of other jobs included."""
        return len(self._residuals)

    def update(self, results: Sequence[MeasureResult]) -> None:
        for result in results:
            if result.latency_s is not None:
                self._learn(self._task, result.kernel, result.instance.shape, result.latency_s, 1.0)
                self._stale = True

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        if self._stale:
            self._fit()
        extents = extents_of(self._task.workload, shapes)
        prior = np.log(self._rule.prior_latency_s(self._task, kernels, extents))
        if not self._boosters:
            spread = np.full(prior.shape, UNKNOWN_SPREAD)
            return Prediction(np.exp(prior + self._constant), spread)
        features = self._rule.features(self._task, kernels, extents)
        data = _matrix(features.reshape(prior.size, -1))
        votes = np.stack([booster.predict(data).reshape(prior.shape) for booster in self._boosters])
        return Prediction(np.exp(prior + self._constant + votes.mean(axis=0)), votes.std(axis=0))

    def _learn(
        self, task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int], latency_s: float, weight: float
    ) -> None:
        extents = extents_of(task.workload, [shape])
        prior = self._rule.prior_latency_s(task, [kernel], extents)[0, 0]
        self._inputs.append(self._rule.features(task, [kernel], extents)[0, 0])
        self._residuals.append(float(np.log(latency_s) - np.log(prior)))
        self._weights.append(weight)

    def _learn_warm(self, tasks: dict[str, SearchTask], workload_json: JsonObject, record: TuningRecord) -> None:
        """Learn from a record of another workload; one of another rule, or of another version of it, is left out."""
        kernel, latency_s = record.result.kernel, record.result.latency_s
        if latency_s is None or (kernel.rule, kernel.rule_version) != (self._rule.name, self._rule.version):
            return
        if record.workload_key not in tasks:
            tasks[record.workload_key] = _task_of(Workload.from_json(workload_json), self._task, record)
        self._learn(tasks[record.workload_key], kernel, record.result.instance.shape, latency_s, WARM_WEIGHT)

    def _fit(self) -> None:
        """Put off to the next prediction: several batches may come in between two of them."""
        self._stale = False
        residuals = np.array(self._residuals)
        self._constant = float(np.median(residuals))
        if len(residuals) < MIN_PAIRS:
            self._boosters = []
            return
        inputs, weights = np.stack(self._inputs), np.array(self._weights)
        rng = np.random.default_rng(self._seed)
        self._boosters = []
        for index in range(MODELS):
            counts = rng.multinomial(len(residuals), np.full(len(residuals), 1 / len(residuals)))
            data = _matrix(inputs, residuals - self._constant, weights * np.maximum(counts, 0.1))
            parameters = PARAMETERS | {"seed": self._seed * MODELS + index}
            self._boosters.append(xgboost.train(parameters, data, ROUNDS))


def _matrix(inputs: NDArray[np.float32], *labels_and_weights: NDArray[np.float64]) -> xgboost.DMatrix:
    """On one thread, as the models are: waking others for a few thousand rows takes twenty times as long."""
    label, weight = labels_and_weights or (None, None)
    return xgboost.DMatrix(inputs, label, weight=weight, nthread=1)


def _task_of(workload: Workload, like: SearchTask, record: TuningRecord) -> SearchTask:
    """A task around another workload, for its features alone: same target and threads, the record's one shape."""
    target: Target | None = like.target
    variables = tuple(ShapeVar(name, (value,)) for name, value in record.result.instance.values)
    return SearchTask(workload, shape_vars=variables, instances=None, target=target, threads=record.threads)
