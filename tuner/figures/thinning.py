"""Fewer points that draw the same: a thinned trace keeps its extremes."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 2000
"""The most points of one trace."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def extremes(values: Floats, limit: int = MAX_POINTS) -> Ints:
    """Indices of at most ``limit`` of ``values`` [n], finite, in their order: the first and the last, and the least
    and the greatest of each of equal stretches between. ``limit`` is 4 or more."""
    if len(values) <= limit:
        return np.arange(len(values))
    stretches = (limit - 2) // 2
    bounds = np.linspace(0, len(values), stretches + 1).astype(np.int64)
    kept = [0, len(values) - 1]
    for start, end in itertools.pairwise(bounds):
        part = values[start:end]
        kept += [int(start + part.argmin()), int(start + part.argmax())]
    return np.unique(np.array(kept, np.int64))


def changes(values: Floats, marks: Ints, limit: int = MAX_POINTS) -> Ints:
    """Indices of at most ``limit`` of ``values`` [n] that draw the same steps: the first and the last of each stretch
    over which neither the value nor ``marks`` [n] change; where these are too many, the extremes of them."""
    if len(values) == 0:
        return np.arange(0)
    steps = np.flatnonzero((values[1:] != values[:-1]) | (marks[1:] != marks[:-1]))
    kept = np.unique(np.concatenate([[0], steps, steps + 1, [len(values) - 1]]))
    thinned: Ints = kept[extremes(values[kept], limit)]
    return thinned
