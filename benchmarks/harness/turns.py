"""Timing several contenders on a noisy machine: they take turns, medians are compared, and ratios have intervals."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.measure.timing.turns import LONG_S

ROUNDS = 25
SAMPLE_S = 0.001
"""Many short samples: on a busy machine most of them are over before another process gets the core."""
MIN_ROUNDS = 3
BUDGET_S = 0.6
RESAMPLED = 400
WAKE_S = 0.03
"""Longer than it takes to wake the threads of a pool."""
LEVEL = 0.9

Sampler = Callable[[int], float]
"""Makes a number of calls in a row and returns the mean seconds of one."""
Samples = dict[str, list[float]]
"""Seconds of a call in each round, by contender."""


def sampler(call: Callable[[], object]) -> Sampler:
    def sample(number: int) -> float:
        before = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - before) / number

    return sample


def once_awake(sample: Sampler, number: int) -> float:
    """As ``sample`` says, after calls of WAKE_S: threads that slept have woken up, and have their cores."""
    started = time.perf_counter()
    while time.perf_counter() - started < WAKE_S:
        sample(1)
    return sample(number)


def turns(names: Sequence[str], rounds: int) -> Iterator[Sequence[str]]:
    """The order of each round: it begins one contender later each time."""
    for turn in range(rounds):
        start = turn % len(names) if names else 0
        yield [*names[start:], *names[:start]]


def take_turns(
    contenders: Mapping[str, Sampler], *, rounds: int = ROUNDS, sample_s: float = SAMPLE_S, budget_s: float = BUDGET_S
) -> Samples:
    """Seconds of a call of each contender in each round.

    Each is called twice to warm up; then in each round every one has its turn, as many calls in a row as ``sample_s``
    takes (one at least), in an order that rotates. Before a sample its contender is called once, but for calls of more
    than LONG_S: half of the samples of two contenders would else find the caches as the other one left them, and the
    median might be of either half. Rounds end early, after MIN_ROUNDS, once ``budget_s`` is spent.
    """
    for sample in contenders.values():
        sample(1)
    call_s = {name: sample(1) for name, sample in contenders.items()}
    numbers = {name: max(1, math.ceil(sample_s / max(each, 1e-7))) for name, each in call_s.items()}
    samples: Samples = {name: [] for name in contenders}
    started = time.perf_counter()
    for turn, order in enumerate(turns(list(contenders), rounds)):
        for name in order:
            if call_s[name] <= LONG_S:
                contenders[name](1)
            samples[name].append(contenders[name](numbers[name]))
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() - started > budget_s:
            break
    return samples


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in samples.items()}


def alternate(contenders: Mapping[str, Sampler], **limits: Any) -> dict[str, float]:
    """The median seconds of a call of each contender; ``limits`` as ``take_turns`` has them."""
    return medians(take_turns(contenders, **limits))


# -- what ratios come to ----------------------------------------------------------------------------------------------
def geomean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def interval(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """Between which ratios the geometric mean lies, over shapes, of the medians of ``pairs``: the first one's seconds
    over the second's. A percentile bootstrap over the rounds of each shape (Efron 1979), at LEVEL.

    It tells of noise within a run, and nothing of what another search or another machine would give.
    """
    rng = np.random.default_rng(0)
    total = np.zeros(RESAMPLED)
    for first, second in pairs:
        for times, sign in ((first, 1.0), (second, -1.0)):
            drawn = rng.choice(np.asarray(times), (RESAMPLED, len(times)))
            total += sign * np.log(np.median(drawn, axis=1))
    low, high = np.quantile(np.exp(total / len(pairs)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
