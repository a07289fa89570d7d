"""Choosing the kernels of a library: weighted facility location under the layout constraint.

Minimise the sum over shapes of weight x latency of the best chosen kernel, with at most ``limit`` kernels, all of one
group (a library's kernels share one packed layout). Greedy first (within 1 - 1/e of the best gain, since the gain of a
set is submodular: Nemhauser, Wolsey and Fisher 1978), then swaps while they help.

Where a range spans orders of magnitude the sum is that of its largest shapes. So among layouts whose sums are about the
same, and for what room is left, the others decide: by the weighted sum of latencies relative to the best kernel of each
shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WORTH = 1e-3
"""Relative gain below which one more kernel is not worth its code."""

WORTH_RELATIVE = 3e-3
"""Gain in relative latency below which one more kernel is not worth its code."""
SAME_SUM = 0.01
"""Sums of latencies that exceed the least one by no more than this share count as equal to it."""


def select(latency_s: Floats, weights: Floats, limit: int, groups: Sequence[Hashable]) -> list[int]:
    """The indices of the chosen kernels, the most useful first. ``latency_s`` is [kernels, shapes], inf where unusable.

    Raises ValueError if no group has a kernel that is usable for every shape.
    """
    chosen: list[tuple[float, list[int]]] = []
    for group in dict.fromkeys(groups):
        members = np.array([index for index, other in enumerate(groups) if other == group])
        own = latency_s[members]
        picked = _swapped(own, weights, _greedy(own, weights, limit))
        if picked and np.isfinite(cost := _cost(own, weights, picked)):
            chosen.append((cost, [int(members[index]) for index in _filled(own, weights, picked, limit)]))
    if not chosen:
        raise ValueError("no group has kernels that serve every shape")
    limit_s = (1 + SAME_SUM) * min(cost for cost, _ in chosen)
    share = weights / latency_s.min(axis=0)
    return min((kernels for cost, kernels in chosen if cost <= limit_s), key=lambda each: _cost(latency_s, share, each))


def spread_weights(weights: Floats, points: Floats, instances: Floats) -> Floats:
    """Weights of all shapes of a range from those of the instances, summing to the same total.

    Half of an instance's weight stays on its own shape, half is shared by the shapes that are nearer to it (in the
    logarithms of ``points`` [shapes, dims] and ``instances`` [instances, dims]) than to any other instance: instances
    stand for their neighbourhoods, which is where a library will be used too.
    """
    distance = np.abs(np.log(points + 1)[:, None, :] - np.log(instances + 1)[None, :, :]).sum(axis=2)
    nearest = distance.argmin(axis=1)
    spread = np.zeros(len(points))
    for index, weight in enumerate(weights):
        near = nearest == index
        # Where no shape is the instance's own (a range is thinned), the closest ones stand for it.
        own = distance[:, index] == distance[:, index].min()
        if not near.any():
            near = own
        spread[own] += weight / 2 / own.sum()
        spread[near] += weight / 2 / near.sum()
    return spread


def _cost(latency_s: Floats, weights: Floats, chosen: Sequence[int]) -> float:
    """inf x 0 must not be nan: an unusable kernel at a shape of weight 0 still is one."""
    best = latency_s[list(chosen)].min(axis=0)
    return float("inf") if np.isinf(best).any() else float((best * weights).sum())


def _greedy(latency_s: Floats, weights: Floats, limit: int) -> list[int]:
    chosen: list[int] = []
    best = np.full(latency_s.shape[1], np.inf)
    while len(chosen) < min(limit, len(latency_s)):
        candidate = np.minimum(latency_s, best)
        missing = np.isinf(candidate).sum(axis=1)
        costs = (np.where(np.isinf(candidate), 0.0, candidate) * weights).sum(axis=1)
        pick = int(np.lexsort((costs, missing))[0])
        if chosen and np.isfinite(best).all() and costs[pick] > (best * weights).sum() * (1 - WORTH):
            break
        chosen.append(pick)
        best = candidate[pick]
    return chosen


def _filled(latency_s: Floats, weights: Floats, chosen: list[int], limit: int) -> list[int]:
    """``chosen``, and further kernels while one gains WORTH_RELATIVE of the weighted relative latencies."""
    if np.isinf(_cost(latency_s, weights, chosen)) or not weights.sum():
        return chosen
    chosen = list(chosen)
    share = weights / weights.sum() / latency_s.min(axis=0)
    while len(chosen) < min(limit, len(latency_s)):
        best = latency_s[chosen].min(axis=0)
        gains = (best - np.minimum(latency_s, best)) @ share
        pick = int(gains.argmax())
        if gains[pick] < WORTH_RELATIVE:
            break
        chosen.append(pick)
    return chosen


def _swapped(latency_s: Floats, weights: Floats, chosen: list[int]) -> list[int]:
    cost, improved = _cost(latency_s, weights, chosen), True
    while improved:
        improved = False
        for position in range(len(chosen)):
            for other in set(range(len(latency_s))) - set(chosen):
                trial = [*chosen[:position], other, *chosen[position + 1 :]]
                trial_cost = _cost(latency_s, weights, trial)
                if trial_cost < cost * (1 - 1e-9):
                    chosen, cost, improved = trial, trial_cost, True
    return chosen
