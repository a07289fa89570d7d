"""How much each axis matters for the time of a kernel, by TreeSHAP over XGBoost.

The cost model's own features are a rule's, not its axes. So a model with the same parameters is trained on the choices
themselves, and on the shape, to predict the log of the time over the median of its instance; TreeSHAP (Lundberg et al.,
Nature Machine Intelligence 2020) divides each prediction among its inputs, and XGBoost computes it (pred_contribs).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import xgboost
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model.residual import PARAMETERS, ROUNDS
from tuner.search.importance import AxisImportance, Importance
from tuner.search.observations import Measured, log_points

MIN_PAIRS = 24
MAX_PAIRS = 1500
"""Of more, as many by chance: each tree takes longer, and says hardly more."""
UNSEEN = 4
"""One of so many pairs is kept back, to see how well the others predict it."""

Floats = NDArray[np.float64]


def importance_of(task: SearchTask, measured: Measured, seed: int = 0) -> Importance | None:
    """Of the axes of the rule that most measured kernels are of; None where these are too few, or all alike."""
    common = Counter(kernel.rule for kernel in measured.kernels).most_common(1)
    if not common:
        return None
    rule = common[0][0]
    kernels = [kernel for kernel in measured.kernels if kernel.rule == rule]
    pairs = [(kernel, key, time) for kernel in kernels for key, time in measured.latencies_of(kernel).items()]
    rng = np.random.default_rng(seed)
    if len(pairs) > MAX_PAIRS:
        pairs = [pairs[index] for index in np.sort(rng.choice(len(pairs), MAX_PAIRS, replace=False))]
    names = sorted({name for kernel in kernels for name, _ in kernel.values})
    choices = np.array([_choices(kernel, names) for kernel, _, _ in pairs])
    varying = [index for index in range(len(names)) if len(pairs) and len(np.unique(choices[:, index])) > 1]
    if len(pairs) < MIN_PAIRS or not varying:
        return None
    target = _over_median(pairs)
    inputs = np.hstack([choices[:, varying], log_points(task, [dict(key) for _, key, _ in pairs])]).astype(np.float32)
    effects, explained = _explained(inputs, target, rng, seed)
    total = float(effects[: len(varying)].sum()) or 1.0
    by_axis = [(names[index], float(effect)) for index, effect in zip(varying, effects, strict=False)]
    axes = [AxisImportance(name, effect, effect / total) for name, effect in sorted(by_axis, key=lambda each: -each[1])]
    return Importance(rule, len(pairs), explained, tuple(axes))


def _choices(kernel: MicroKernel, names: list[str]) -> list[int]:
    return [kernel.get(name) for name in names]


def _over_median(pairs: list[tuple[MicroKernel, tuple[tuple[str, int], ...], float]]) -> Floats:
    """[pairs]: log of the time over the median of all kernels at the same instance."""
    times: dict[object, list[float]] = {}
    for _, key, time in pairs:
        times.setdefault(key, []).append(time)
    medians = {key: float(np.median(values)) for key, values in times.items()}
    return np.array([np.log(time / medians[key]) for _, key, time in pairs])


def _explained(
    inputs: NDArray[np.float32], target: Floats, rng: np.random.Generator, seed: int
) -> tuple[Floats, float]:
    """[inputs] mean absolute SHAP values over all pairs, and how much is explained of pairs that were kept back."""
    order = rng.permutation(len(target))
    unseen, seen = order[: len(order) // UNSEEN], order[len(order) // UNSEEN :]
    predicted = _trained(inputs[seen], target[seen], seed).inplace_predict(inputs[unseen])
    spread = float(((target[unseen] - target[seen].mean()) ** 2).sum())
    explained = 1 - float(((target[unseen] - predicted) ** 2).sum()) / spread if spread > 0 else 0.0
    # Over all pairs: every one that was measured says something.
    data = xgboost.DMatrix(inputs, nthread=1)
    values = _trained(inputs, target, seed).predict(data, pred_contribs=True)[:, :-1]
    return np.abs(values.astype(np.float64)).mean(axis=0), max(0.0, explained)


def _trained(inputs: NDArray[np.float32], target: Floats, seed: int) -> xgboost.Booster:
    data = xgboost.DMatrix(inputs, target, nthread=1)
    return xgboost.train(PARAMETERS | {"seed": seed}, data, ROUNDS)
