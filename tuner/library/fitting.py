"""Trees of dispatchers, fitted to the regret (chosen latency / best latency - 1) of every kernel at every shape, never
to kernel ids: a wrong choice that costs nothing is no error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.library.dispatcher import Leaf, Node, Tree

MAX_DEPTH = 16
TOLERATED_REGRET = 0.002
"""Mean regret that a subtree may cost before it is worth its comparisons."""
MAX_LEAVES = 256
"""Leaves of a whole tree: where more would be needed, the latencies are noisier than the tolerance is fine."""


def fit(dims: Sequence[str], points: NDArray[np.int64], latency_s: NDArray[np.float64]) -> Tree:
    """A tree over ``points`` [shapes, dims] that keeps the regret of ``latency_s`` [shapes, kernels] small."""
    regret = latency_s / latency_s.min(axis=1, keepdims=True) - 1.0
    if not dims:
        return Leaf(int(regret.sum(axis=0).argmin()))
    grown, tolerated = _grow(tuple(dims), points, regret, MAX_DEPTH), TOLERATED_REGRET
    while _leaves(tree := _pruned(grown, tuple(dims), points, regret, tolerated)[0]) > MAX_LEAVES:
        tolerated *= 2
    return tree


def _grow(dims: tuple[str, ...], points: NDArray[np.int64], regret: NDArray[np.float64], depth: int) -> Tree:
    """Split until one kernel is best for all points: pruning then sees splits that pay only together."""
    best = int(regret.sum(axis=0).argmin())
    if depth == 0 or regret[:, best].sum() == 0.0:
        return Leaf(best)
    result = min((_best_split(points[:, d], regret, d) for d in range(len(dims))), key=lambda split: split[:2])
    cost, _, dim, at_most = result
    if math.isinf(cost):
        return Leaf(best)
    below = points[:, dim] <= at_most
    return Node(
        dims[dim],
        at_most,
        _grow(dims, points[below], regret[below], depth - 1),
        _grow(dims, points[~below], regret[~below], depth - 1),
    )


def _best_split(values: NDArray[np.int64], regret: NDArray[np.float64], dim: int) -> tuple[float, float, int, int]:
    """(regret after the best split along one dim, its imbalance, the dim, the threshold); infinite if there is none."""
    order = np.argsort(values, kind="stable")
    ordered, cumulative = values[order], regret[order].cumsum(axis=0)
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1])
    if len(cuts) == 0:
        return math.inf, 0.0, dim, 0
    left = cumulative[cuts].min(axis=1)
    right = (cumulative[-1] - cumulative[cuts]).min(axis=1)
    imbalance = np.abs(cuts + 1 - len(values) / 2)
    index = np.lexsort((imbalance, np.round(left + right, 12)))[0]
    # Halfway between the two shapes that it parts: shapes in between were not fitted.
    threshold = int(ordered[cuts[index]] + ordered[cuts[index] + 1]) // 2
    return float(left[index] + right[index]), float(imbalance[index]), dim, threshold


def _leaves(tree: Tree) -> int:
    return 1 if isinstance(tree, Leaf) else _leaves(tree.then) + _leaves(tree.otherwise)


def _pruned(
    tree: Tree, dims: tuple[str, ...], points: NDArray[np.int64], regret: NDArray[np.float64], tolerated: float
) -> tuple[Tree, float]:
    """``tree`` with every subtree replaced by a leaf that costs at most ``tolerated`` more regret in the mean.

    Also the regret of ``tree`` as it was grown: what a leaf costs is compared with that, so that the cost of pruning
    does not add up from level to level.
    """
    if isinstance(tree, Leaf):
        return tree, float(regret[:, tree.kernel].sum())
    below = points[:, dims.index(tree.dim)] <= tree.at_most
    then, then_regret = _pruned(tree.then, dims, points[below], regret[below], tolerated)
    otherwise, otherwise_regret = _pruned(tree.otherwise, dims, points[~below], regret[~below], tolerated)
    grown = then_regret + otherwise_regret
    best = int(regret.sum(axis=0).argmin())
    if regret[:, best].sum() - grown <= tolerated * len(points):
        return Leaf(best), grown
    return (then if then == otherwise else Node(tree.dim, tree.at_most, then, otherwise)), grown
