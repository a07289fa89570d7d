"""Kernels that differ from one another, and from those that were tried, in as many axes as possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tuner.schedule.space import MicroKernel


def most_diverse(pool: Sequence[MicroKernel], tried: Collection[MicroKernel], count: int) -> list[MicroKernel]:
    """At most ``count`` kernels of ``pool``, each the one whose nearest neighbour among those before it and ``tried``
    (at least one kernel) differs in the most axes. An axis that one rule has and another has not differs."""
    if not pool:
        return []
    axes = sorted({name for kernel in (*pool, *tried) for name, _ in kernel.values})
    rules = {kernel.rule: number for number, kernel in enumerate((*pool, *tried))}
    values, known = (
        np.array([[rules[kernel.rule], *(dict(kernel.values).get(axis, -1) for axis in axes)] for kernel in kernels])
        for kernels in (pool, tried)
    )
    nearest = np.min([(values != other).sum(axis=1) for other in known], axis=0)
    chosen: list[int] = []
    while len(chosen) < min(count, len(pool)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, (values != values[chosen[-1]]).sum(axis=1))
    return [pool[index] for index in chosen]
