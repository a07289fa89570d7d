"""Trees of dispatchers, fitted to the regret (chosen latency / best latency - 1) of every kernel at every shape, never
to kernel ids: a wrong choice that costs nothing is no error. Large regrets count for more than they are: what a call
may lose at worst is a goal beside what calls lose in the mean.

A tree compares symbols, and features of them: what is left of the kernels' tiles, and products of two extents, which
say how much there is to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.library.dispatcher import Leaf, Node, Tree, feature
from tuner.program.language.dims import DimExpr

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_DEPTH = 32
TOLERATED_REGRET = 0.002
"""Mean loss that a subtree may cost before it is worth its comparisons: of regret alone if no regret is large."""
MAX_LEAVES = 256
"""Leaves of a whole tree: where more would be needed, the latencies are noisier than the tolerance is fine."""
LENIENCY = 1.25
"""How much more is tolerated, again and again, of a tree with too many leaves."""
COUNTS_TWICE = 0.03
"""A regret counts as itself and its square over this."""
UNSPLIT = 0.25
"""The share of what is tolerated that points may lose which are split no further. As large a share is divided among as
many leaves as there may be, however few their points are; the rest is for pruning."""
MAX_FEATURES = 48
"""Features that a tree is fitted to."""
LARGE, LARGE_LOSS = 0.05, 50.0
"""A regret above the first counts for the second more."""


def _go_on() -> None:
    """Nothing ends the fitting."""


def fit(
    dims: Sequence[str], points: Ints, latency_s: Floats, features: Sequence[str] = (),
    check: Callable[[], object] = _go_on,
) -> Tree:  # fmt: skip
    """A tree over ``points`` [shapes, dims] that keeps the regret of ``latency_s`` [shapes, kernels] small. It compares
    dims, and ``features`` of them (see Node) where these part the shapes better.

    ``check`` is called before each split and each pruning, and ends the fitting by what it raises.
    """
    loss = _loss(latency_s)
    if not dims:
        return Leaf(int(loss.sum(axis=0).argmin()))
    names = (*dims, *features)
    columns = _columns(names, dims, points)
    each = [_Column(name, values) for name, values in zip(names, columns, strict=True)]
    every, tolerated = np.arange(len(points)), (1 - 2 * UNSPLIT) * TOLERATED_REGRET
    spare = UNSPLIT * TOLERATED_REGRET * len(points) / MAX_LEAVES
    grown, by_name = _grow(each, every, loss, spare, check), dict(zip(names, columns, strict=True))
    while leaves(tree := _pruned(grown, by_name, every, loss, tolerated)[0]) > MAX_LEAVES:
        check()
        tolerated *= LENIENCY
    return tree


def features_of(dims: Sequence[str], tiles: Mapping[DimExpr, Sequence[int]]) -> list[str]:
    """What is left of tiles (by the extents that they are along, see ``tiles_of``), products of two dims, and of two
    numbers of tiles: the first MAX_FEATURES of them."""
    rests = [extent % size for extent, sizes in tiles.items() for size in sizes]
    products = [DimExpr.var(one) * other for one, other in itertools.combinations(dims, 2)]
    counts = [[(extent + (size - 1)) // size for size in sizes] for extent, sizes in tiles.items()]
    several = [one * other for ones, others in itertools.combinations(counts, 2) for one in ones for other in others]
    texts = dict.fromkeys(str(each) for each in (*rests, *products, *several) if each.variables)
    return list(texts)[:MAX_FEATURES]


def chosen(tree: Tree, dims: Sequence[str], points: Ints) -> Ints:
    """[shapes]: the kernel's index at each of ``points`` [shapes, dims], as ``choose`` gives it at one."""
    result = np.empty(len(points), np.int64)
    _choose(tree, dims, points, np.arange(len(points)), result)
    return result


def _choose(tree: Tree, dims: Sequence[str], points: Ints, at: Ints, result: Ints) -> None:
    if isinstance(tree, Leaf):
        result[at] = tree.kernel
        return
    (values,) = _columns([tree.dim], dims, points[at])
    below = values <= tree.at_most
    _choose(tree.then, dims, points, at[below], result)
    _choose(tree.otherwise, dims, points, at[~below], result)


def _columns(names: Sequence[str], dims: Sequence[str], points: Ints) -> list[Ints]:
    """Dims and features at all points."""
    values = dict(zip(dims, points.T, strict=True))
    return [np.asarray(feature(name, values)) for name in names]


def _loss(latency_s: Floats) -> Floats:
    regret = latency_s / latency_s.min(axis=1, keepdims=True) - 1.0
    return np.asarray(regret + regret**2 / COUNTS_TWICE + LARGE_LOSS * (regret > LARGE))


class _Column:
    """One dim or feature at all points: its different values in ascending order, and the number of each point's."""

    def __init__(self, name: str, values: Ints) -> None:
        self.name = name
        self.values, self.codes = np.unique(values, return_inverse=True)

    def splits(self, at: Ints, loss: Floats) -> tuple[Ints, Ints, Floats]:
        """The numbers of values that the points ``at`` have; how many points, and the loss of each kernel, up to each
        of them. ``loss`` is that of these points."""
        codes, kernels = self.codes[at], loss.shape[1]
        if len(self.values) > len(at):
            order = codes.argsort(kind="stable")
            ends = np.flatnonzero(np.append(codes[order][1:] != codes[order][:-1], True))
            return codes[order][ends], ends + 1, loss[order].cumsum(axis=0)[ends]
        count = np.bincount(codes)
        cells = (codes[:, None] * kernels + np.arange(kernels)).ravel()
        sums = np.bincount(cells, weights=loss.ravel()).reshape(-1, kernels)
        there = np.flatnonzero(count)
        return there, count[there].cumsum(), sums[there].cumsum(axis=0)


def _grow(
    columns: Sequence[_Column], at: Ints, loss: Floats, spare: float, check: Callable[[], object],
    depth: int = MAX_DEPTH,
) -> Tree:  # fmt: skip
    """Split until one kernel is good enough for all points: pruning then sees splits that pay only together. ``at``
    are the points that get here, ``loss`` is theirs; ``spare``: what is no loss, however few they are."""
    best = int(loss.sum(axis=0).argmin())
    if depth == 0 or loss[:, best].sum() <= max(spare, UNSPLIT * TOLERATED_REGRET * len(loss)):
        return Leaf(best)
    check()
    if (split := _best_split(columns, at, loss)) is None:
        return Leaf(best)
    column, code, at_most = split
    below = column.codes[at] <= code
    then, otherwise = (_grow(columns, at[here], loss[here], spare, check, depth - 1) for here in (below, ~below))
    return Node(column.name, at_most, then, otherwise)


def _best_split(columns: Sequence[_Column], at: Ints, loss: Floats) -> tuple[_Column, int, int] | None:
    """The column, the last value's number and the threshold after which the least loss is left, of equal ones the most
    even; None if all points are alike."""
    found: list[tuple[float, float, int, int, int]] = []
    for number, column in enumerate(columns):
        there, counts, sums = column.splits(at, loss)
        if len(there) == 1:
            continue
        left, right = sums[:-1].min(axis=1), (sums[-1] - sums[:-1]).min(axis=1)
        cost, imbalance = np.round(left + right, 12), np.abs(counts[:-1] - len(at) / 2)
        index = np.lexsort((imbalance, cost))[0]
        found.append((float(cost[index]), float(imbalance[index]), number, int(there[index]), int(there[index + 1])))
    if not found:
        return None
    *_, number, below, above = min(found)
    values = columns[number].values
    # Halfway between the two shapes that it parts: shapes in between were not fitted.
    return columns[number], below, int(values[below] + values[above]) // 2


def leaves(tree: Tree) -> int:
    return leaves(tree.then) + leaves(tree.otherwise) if isinstance(tree, Node) else 1


def _pruned(
    tree: Tree, columns: Mapping[str, Ints], at: Ints, loss: Floats, tolerated: float
) -> tuple[Tree, float]:  # fmt: skip
    """``tree`` with every subtree replaced by a leaf that costs at most ``tolerated`` more loss in the mean.

    Also the loss of ``tree`` as it was grown: what a leaf costs is compared with that, so that the cost of pruning does
    not add up from level to level. ``at`` are the points that get here, ``loss`` is theirs.
    """
    if isinstance(tree, Leaf):
        return tree, float(loss[:, tree.kernel].sum())
    below = columns[tree.dim][at] <= tree.at_most
    then, then_loss = _pruned(tree.then, columns, at[below], loss[below], tolerated)
    otherwise, otherwise_loss = _pruned(tree.otherwise, columns, at[~below], loss[~below], tolerated)
    grown = then_loss + otherwise_loss
    best = int(loss.sum(axis=0).argmin())
    if loss[:, best].sum() - grown <= tolerated * len(at):
        return Leaf(best), grown
    return (then if then == otherwise else Node(tree.dim, tree.at_most, then, otherwise)), grown
