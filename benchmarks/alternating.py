"""Timing several contenders on a noisy machine: they take turns, and medians are compared."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

ROUNDS = 7
SAMPLE_S = 0.004
MIN_ROUNDS = 3
BUDGET_S = 0.6

Sampler = Callable[[int], float]
"""Makes a number of calls in a row and returns the mean seconds of one."""


def sampler(call: Callable[[], object]) -> Sampler:
    """Samples of ``call`` in this process."""

    def sample(number: int) -> float:
        before = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - before) / number

    return sample


def alternate(
    contenders: Mapping[str, Sampler], *, rounds: int = ROUNDS, sample_s: float = SAMPLE_S, budget_s: float = BUDGET_S,
    figure: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:  # fmt: skip
    """Seconds of a call of each contender: ``figure`` of its samples, the median where nothing else is said.

    Each is called twice to warm up; then in each round every one has its turn, as many calls in a row as ``sample_s``
    takes (one at least), in an order that rotates. Rounds end early, after MIN_ROUNDS, once ``budget_s`` is spent.
    """
    names = list(contenders)
    for name in names:
        contenders[name](1)
    numbers = {name: max(1, math.ceil(sample_s / max(contenders[name](1), 1e-7))) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = time.perf_counter()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(contenders[name](numbers[name]))
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() - started > budget_s:
            break
    return {name: figure(times) for name, times in samples.items()}


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, ratios)))
