"""Timing several callables against each other on a noisy machine: they take turns, and medians are compared."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

ROUNDS = 7
SAMPLE_S = 0.004
LEAST_ROUNDS = 3
BUDGET_S = 0.6


def alternate(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = ROUNDS,
    sample_s: float = SAMPLE_S,
    budget_s: float = BUDGET_S,
) -> dict[str, float]:
    """Median seconds of each call.

    Each is called once to warm up; then in each round every one has its turn, as many calls in a row as ``sample_s``
    takes (one at least), in an order that rotates. Rounds end early, after LEAST_ROUNDS, once ``budget_s`` is spent.
    """
    estimates = {name: _once(call) for name, call in calls.items()}
    numbers = {name: max(1, math.ceil(sample_s / max(_once(call), 1e-7))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in estimates}
    names, started = list(calls), time.perf_counter()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(_mean(calls[name], numbers[name]))
        if turn + 1 >= LEAST_ROUNDS and time.perf_counter() - started > budget_s:
            break
    return {name: statistics.median(times) for name, times in samples.items()}


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _once(call: Callable[[], object]) -> float:
    return _mean(call, 1)


def _mean(call: Callable[[], object], number: int) -> float:
    before = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - before) / number
