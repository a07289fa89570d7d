"""log latency(kernel, shape) = log of the analytic prior + a residual learned from raw pair times.

DietCode (MLSys 2022, section 4) divides each measured speed by its analytic penalties and learns what is left as the
kernel's own: an error of the penalties is part of the label. Here the residual sees kernel and shape together, so a
wrong prior is corrected where it is wrong. The residual is the mean of a few XGBoost models on bootstrap samples; their
disagreement is the spread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import xgboost
from numpy.typing import NDArray

from tuner.program.build import workload_from_json
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar
from tuner.records import MeasureResult, speed_correction
from tuner.rules import Refused, by_rule, extents_of, is_current, rule_of, rules_of
from tuner.rules.space import MicroKernel
from tuner.search.cost_model._base import Prediction, WarmRecord
from tuner.search.observations import at_reference_speed, reference_anchor_s

log = logging.getLogger(__name__)

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
MAX_WARM_PAIRS = 3000
"""Pairs of other searches that the model is trained on, the first of those given: more make each fit seconds longer."""


class PairCostModel:
    """The cost model of one search task. ``warm`` are records of other searches, the most telling first; they are taken
    to the speed of the device at the first of them.

    Rules describe their kernels by features of their own, so each rule of the task has a residual of its own.
    """

    def __init__(self, task: SearchTask, seed: int = 0, warm: Sequence[WarmRecord] = ()) -> None:
        self._task, self._seed = task, seed
        self._rules = {rule.name: rule for rule in rules_of(task)}
        self._residuals = {name: _Residual(seed) for name in self._rules}
        self._warm_anchor_s = reference_anchor_s(each.record.result for each in warm)
        # Together where they can be: a rule asked of a thousand kernels takes hardly longer than of one.
        together: dict[tuple[Hashable, ...], list[WarmRecord]] = {}
        for each in warm[:MAX_WARM_PAIRS]:
            record = each.record
            place = record.workload_key, record.target_fingerprint, record.result.kernel.rule
            together.setdefault((place, record.result.instance.values, each.weight), []).append(each)
        tasks: dict[Hashable, SearchTask | None] = {}
        for (group, *_), alike in together.items():
            self._learn_warm(tasks, group, alike)

    @cached_property
    def theory(self) -> PairCostModel:
        return PairCostModel(self._task, self._seed)

    def at_speed(self, anchor_s: float) -> None:
        factor = speed_correction(self._warm_anchor_s, anchor_s)
        for residual in self._residuals.values():
            residual.shift(math.log(factor))
        self._warm_anchor_s = anchor_s

    @property
    def pairs(self) -> int:
        """How many measured pairs the model knows, those of other jobs included."""
        return sum(residual.pairs for residual in self._residuals.values())

    def update(self, results: Sequence[MeasureResult]) -> None:
        for result in results:
            if result.latency_s is not None:
                self._learn(self._task, [result], 1.0)

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

    def _learn(self, task: SearchTask, results: Sequence[MeasureResult], weight: float) -> None:
        """Learn from successful results of one rule at one instance of ``task``."""
        kernels, latency_s = [result.kernel for result in results], [result.latency_s for result in results]
        rule, extents = self._rules[kernels[0].rule], extents_of(task.workload, [results[0].instance.shape])
        prior = rule.prior_latency_s(task, kernels, extents)[:, 0]
        features = rule.features(task, kernels, extents)[:, 0]
        targets = np.log(np.array(latency_s, np.float64)) - np.log(prior)
        if not np.isfinite(targets).all():
            raise ValueError(f"theory expects {prior} s")
        for row, target in zip(features, targets, strict=True):
            self._residuals[rule.name].learn(row, float(target), weight)

    def _learn_warm(
        self, tasks: dict[Hashable, SearchTask | None], place: Hashable, warm: Sequence[WarmRecord]
    ) -> None:
        """Learn from records at one instance; ``place`` names their workload, target and rule.

        ``tasks``: those made before, by place. Records of a rule, or a version of it, that this task does not use are
        left out.
        """
        result = at_reference_speed([each.record.result for each in warm], self._warm_anchor_s)
        usable = [r for r in result if r.ok and r.kernel.rule in self._rules and is_current(r.kernel)]
        if not usable:
            return
        try:
            if place not in tasks:
                tasks[place] = _similar_task(warm[0], self._task)
            if (task := tasks[place]) is not None:
                self._learn(task, usable, warm[0].weight)
        except (ArithmeticError, KeyError, ValueError) as error:
            # Records may come from a file: one that fits no rule teaches nothing, and harms no search.
            if len(warm) > 1:
                for each in warm:
                    self._learn_warm(tasks, place, [each])
            else:
                log.info("a record of %s is left out: %s", warm[0].record.workload_key, error)


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

    def shift(self, by: float) -> None:
        """Add ``by`` to every target."""
        self._targets = [target + by for target in self._targets]
        self._stale = self._stale or bool(self._targets)

    def predict(
        self, features: Callable[[], NDArray[np.float32]], shape: tuple[int, ...]
    ) -> tuple[NDArray[np.float64] | float, NDArray[np.float64] | float]:
        """The residual and its spread, [kernels, shapes]; ``features()`` is asked for only where there are models."""
        if self._stale:
            self._fit()
        if not self._boosters:
            return self._constant, UNKNOWN_SPREAD
        inputs = features().reshape(math.prod(shape), -1)
        votes = np.stack([booster.inplace_predict(inputs).reshape(shape) for booster in self._boosters])
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
            label, weight = targets - self._constant, weights * np.maximum(counts, 0.1)
            # On one thread, as the models are: waking others for a few thousand rows takes twenty times as long.
            data = xgboost.DMatrix(inputs, label, weight=weight, nthread=1)
            parameters = PARAMETERS | {"seed": self._seed * MODELS + index}
            self._boosters.append(xgboost.train(parameters, data, ROUNDS))


def _similar_task(warm: WarmRecord, like: SearchTask) -> SearchTask | None:
    """A task around the workload of a record, for its features alone: as many threads, the record's one shape.

    None where the kernel's rule does not take that workload any more.
    """
    record, target = warm.record, warm.target or like.known_target
    workload = workload_from_json(warm.workload)
    variables = tuple(ShapeVar(name, (value,)) for name, value in record.result.instance.values)
    task = SearchTask(workload, shape_vars=variables, instances=None, target=target, threads=record.threads)
    if isinstance(rule_of(record.result.kernel).match(workload, target), Refused):
        return None
    return task
