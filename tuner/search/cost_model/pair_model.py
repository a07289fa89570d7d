"""log latency(kernel, shape) = log of the analytic prior + a residual learned from raw pair times.

DietCode (MLSys 2022, section 4) divides each measured speed by its analytic penalties and learns what is left as the
kernel's own: an error of the penalties is part of the label. Here the residual sees kernel and shape together, so a
wrong prior is corrected where it is wrong; and the rates that the prior takes for the device are fitted again to what
the search measures. The residual is the mean of a few XGBoost models on bootstrap samples; their disagreement, scaled
by how far predictions were off so far, is the spread.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.calibration.fit import Observed
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target.rates import Rates
from tuner.records import MeasureResult, cache_of, speed_correction
from tuner.schedule import NoMatch, Rule, by_rule, extents_of, is_current, rule_of, rules_of
from tuner.schedule.space import MicroKernel, SearchSpace
from tuner.search.cost_model import refit
from tuner.search.cost_model._base import Prediction, WarmRecord
from tuner.search.cost_model.residual import Residual
from tuner.search.observations import at_reference_speed, reference_anchor_s

log = logging.getLogger(__name__)

TOGETHER = 256
"""Pairs that theory is asked of at once: it answers for each of their kernels at each of their shapes."""
MAX_WARM_PAIRS = 3000
"""Pairs of other searches that the model is trained on, the first of those given: more make each fit seconds longer."""


@dataclass(slots=True)
class _Pairs:
    """Kernels of one rule, measured at one shape of a task. ``latency_s`` [kernels]."""

    task: SearchTask
    kernels: tuple[MicroKernel, ...]
    shape: Mapping[str, int]
    latency_s: NDArray[np.float64]
    weight: float
    is_own: bool

    @classmethod
    def of(cls, task: SearchTask, results: Sequence[MeasureResult], weight: float, *, is_own: bool) -> _Pairs:
        """Of successful results of one rule at one instance of ``task``."""
        latency_s = np.array([result.latency_s for result in results], np.float64)
        kernels = tuple(result.kernel for result in results)
        return cls(task, kernels, results[0].instance.shape, latency_s, weight, is_own)


def _missed(latency_s: NDArray[np.float64], expected_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """What theory misses of each, in logarithms. Raises ValueError where it expects no time."""
    targets = np.log(latency_s) - np.log(expected_s)
    if not np.isfinite(targets).all():
        raise ValueError(f"theory expects {expected_s} s")
    return targets


class PairCostModel:
    """The cost model of one search task. ``warm`` are records of other searches, the most telling first; they are taken
    to the speed of the device at the first of them.

    Rules describe their kernels by features of their own, so each rule of the task has a residual of its own.
    """

    def __init__(self, task: SearchTask, seed: int = 0, warm: Sequence[WarmRecord] = ()) -> None:
        self._task, self._seed = task, seed
        self._rules = {rule.name: rule for rule in rules_of(task)}
        self._residuals = {name: Residual(seed) for name in self._rules}
        self._rates = task.rates
        self._pairs: list[_Pairs] = []
        self._known: set[tuple[MicroKernel, tuple[tuple[str, int], ...]]] = set()
        self._own = self._fitted_to = 0
        """Pairs of this search: there are, and the rates were last fitted to."""
        self._warm_anchor_s = reference_anchor_s(each.record.result for each in warm)
        # Together where they can be: a rule evaluates a thousand kernels in hardly more time than one.
        together: dict[tuple[Hashable, ...], list[WarmRecord]] = {}
        for each in warm[:MAX_WARM_PAIRS]:
            record = each.record
            origin = record.workload_key, record.target_fingerprint, record.result.kernel.rule
            together.setdefault((origin, record.result.instance.values, each.weight), []).append(each)
        tasks: dict[Hashable, _Similar | None] = {}
        for (group, *_), alike in together.items():
            self._learn_warm(tasks, group, alike)

    @cached_property
    def theory(self) -> PairCostModel:
        return PairCostModel(self._task, self._seed)

    @property
    def rates(self) -> Rates:
        """What theory takes for the device's now."""
        return self._rates

    @property
    def interval_coverage(self) -> float | None:
        tested = sum(residual.tested for residual in self._residuals.values())
        return sum(residual.covered for residual in self._residuals.values()) / tested if tested else None

    def at_speed(self, anchor_s: float) -> None:
        factor = speed_correction(self._warm_anchor_s, anchor_s)
        self._warm_anchor_s = anchor_s
        if factor != 1.0:
            for pairs in self._pairs:
                pairs.latency_s = pairs.latency_s * factor
            self._learn_again()

    @property
    def pairs(self) -> int:
        """How many measured pairs the model knows, those of other jobs included."""
        return sum(residual.pairs for residual in self._residuals.values())

    def update(self, results: Sequence[MeasureResult]) -> None:
        measured = [result for result in results if result.latency_s is not None]
        for rule, rows in by_rule([result.kernel for result in measured]):
            for start in range(0, len(rows), TOGETHER):
                self._learn_own(rule, [measured[row] for row in rows[start : start + TOGETHER]])
        for result in measured:
            self._pairs.append(_Pairs.of(self._task, [result], 1.0, is_own=True))
        self._own += len(measured)
        if refit.is_due(self._own, self._fitted_to):
            self._fit_rates()

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        task = self._task.at_rates(self._rates)
        extents = extents_of(task.workload, shapes)
        latency_s, spread = np.empty((2, len(kernels), len(shapes)))
        for rule, rows in by_rule(kernels):
            own = [kernels[row] for row in rows]
            theory = rule.theory(task, own, extents)
            prior = np.log(theory.latency_s)
            residual, error = self._residuals[rule.name].predict(theory.features, prior.shape)
            latency_s[rows], spread[rows] = np.exp(prior + residual), error
        return Prediction(latency_s, spread)

    # -- learning -------------------------------------------------------------------------------------------------
    def _learn_own(self, rule: Rule, results: Sequence[MeasureResult]) -> None:
        """Learn from successful results of one rule, and see before how well those pairs were predicted that are new: a
        second reading of one says nothing about that.

        Theory and models are asked of all at once, which takes hardly longer than to ask them of one.
        """
        task, residual = self._task.at_rates(self._rates), self._residuals[rule.name]
        kernels = {result.kernel: None for result in results}
        shapes = {result.instance.values: result.instance.shape for result in results}
        theory = rule.theory(task, list(kernels), extents_of(task.workload, list(shapes.values())))
        row_of, column_of = ({key: at for at, key in enumerate(keys)} for keys in (kernels, shapes))
        rows = [row_of[result.kernel] for result in results]
        columns = [column_of[result.instance.values] for result in results]
        features = theory.features()[rows, columns]
        latency_s = np.array([result.latency_s for result in results], np.float64)
        targets = _missed(latency_s, theory.latency_s[rows, columns])
        new = []
        for at, result in enumerate(results):
            pair = result.kernel, result.instance.values
            if pair not in self._known:
                new.append(at)
                self._known.add(pair)
        residual.test(features[new], targets[new])
        residual.learn(features, targets, 1.0)

    def _learn(self, task: SearchTask, results: Sequence[MeasureResult], weight: float) -> None:
        """Learn from successful results of another search, of one rule at one instance of its ``task``."""
        pairs = _Pairs.of(task, results, weight, is_own=False)
        self._enter(pairs)
        self._pairs.append(pairs)

    def _enter(self, pairs: _Pairs) -> None:
        """Give its residual what theory, at the rates of now, misses of these."""
        rule, task = self._rules[pairs.kernels[0].rule], pairs.task.at_rates(self._rates)
        theory = rule.theory(task, pairs.kernels, extents_of(task.workload, [pairs.shape]))
        targets = _missed(pairs.latency_s, theory.latency_s[:, 0])
        self._residuals[rule.name].learn(theory.features()[:, 0], targets, pairs.weight)

    def _fit_rates(self) -> None:
        """Fit theory's rates to what this search has measured; where that helps, learn all pairs again."""
        rates = refit.refitted([self._observed()], self._rates, self._task.rates)
        self._fitted_to = self._own
        if rates == self._rates:
            return
        self._rates = rates
        self._learn_again()

    def _learn_again(self) -> None:
        for residual in self._residuals.values():
            residual.forget()
        for pairs in self._pairs:
            self._enter(pairs)

    def _observed(self) -> Observed:
        """This search's own pairs; the last reading of each, which is as good as any."""
        own = [pairs for pairs in self._pairs if pairs.is_own]
        shapes = {tuple(pairs.shape.items()): pairs.shape for pairs in own}
        row = {kernel: at for at, kernel in enumerate(dict.fromkeys(each for pairs in own for each in pairs.kernels))}
        column = {key: at for at, key in enumerate(shapes)}
        latency_s = np.full((len(row), len(column)), np.nan)
        for pairs in own:
            for kernel, time_s in zip(pairs.kernels, pairs.latency_s, strict=True):
                latency_s[row[kernel], column[tuple(pairs.shape.items())]] = time_s
        return Observed(self._task, tuple(row), tuple(shapes.values()), latency_s)

    def _learn_warm(self, tasks: dict[Hashable, _Similar | None], origin: Hashable, warm: Sequence[WarmRecord]) -> None:
        """Learn from records at one instance; ``origin`` names their workload, target and rule.

        ``tasks``: those made before, by origin. Records of a rule, or a version of it, that this task does not use are
        left out, and so are kernels with other axes than the rule gives them here.
        """
        result = at_reference_speed([each.record.result for each in warm], self._warm_anchor_s)
        usable = [r for r in result if r.ok and r.kernel.rule in self._rules and is_current(r.kernel)]
        if not usable:
            return
        try:
            if origin not in tasks:
                tasks[origin] = _similar_task(warm[0], self._task)
            if (similar := tasks[origin]) is None:
                return
            known = [result for result in usable if similar.space.has_axes_of(result.kernel)]
            if known:
                self._learn(similar.task, known, warm[0].weight)
        except (ArithmeticError, KeyError, ValueError) as error:
            # Records may come from a file: one that fits no rule teaches nothing, and harms no search.
            if len(warm) > 1:
                for each in warm:
                    self._learn_warm(tasks, origin, [each])
            else:
                log.info("a record of %s is left out: %s", warm[0].record.workload_key, error)


@dataclass(frozen=True, slots=True)
class _Similar:
    """The task of records of another search, and the space of their rule for it."""

    task: SearchTask
    space: SearchSpace


def _similar_task(warm: WarmRecord, like: SearchTask) -> _Similar | None:
    """A task around the workload of a record, for its features alone: as many threads, its protocol, its one shape.

    None where the kernel's rule does not take that workload any more.
    """
    record, target = warm.record, warm.target or like.known_target
    workload = workload_from_json(warm.workload)
    variables = tuple(ShapeVar(name, (value,)) for name, value in record.result.instance.values)
    task = SearchTask(
        workload, shape_vars=variables, instances=None, target=target, threads=record.threads,
        cache=cache_of(record.protocol).value,
    )  # fmt: skip
    rule = rule_of(record.result.kernel)
    if isinstance(rule.match(workload, target), NoMatch):
        return None
    return _Similar(task, rule.space(task))
