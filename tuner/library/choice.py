"""Which of several libraries is served: the best of those that cover the range asked for.

Libraries are compared at points, values of the workload's symbols with a weight each. At a point a library takes as
long as the kernel that its dispatcher runs there: as measured or, where nobody measured that kernel, as the library's
own dispatch table predicts. A prediction gains nothing over a measurement: it may be off by more than libraries differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tuner.library.dispatcher import Dispatcher
from tuner.program.job.range_text import Ranges
from tuner.program.job.task import SearchTask
from tuner.program.language import spans
from tuner.program.language.workload import format_shape

T = TypeVar("T")
NOISE = 0.03
"""How much faster, relatively, one library must be by recorded latencies to be served in place of an older one."""
MAX_POINTS = 256

Medians = Mapping[tuple[str, str], float]
"""(kernel id, ``m=592``) -> the median of its readings at one speed, in seconds."""


@dataclass(frozen=True, slots=True)
class Point:
    """Values of the workload's symbols, and how much they weigh."""

    dims: Mapping[str, int]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Time:
    """What a library takes at a point."""

    latency_s: float
    measured: bool


Times = Sequence[Time | None]
"""The time of one library at each point; None where nothing comparable is known."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library that could be served. ``timed``: by the digest of another, the ratio of that one's time to this one's
    when both were timed in turns, and whether it was beyond noise and verified."""

    digest: str
    times: Times
    timed: Mapping[str, tuple[float, bool]] = field(default_factory=dict)


def meant(asked: T | None, there: Collection[T], usual: T) -> T:
    """The number of threads, or the state of the caches, that a query means: what it says, or else the only one that
    there are libraries for, or else the usual one."""
    return asked or (next(iter(there)) if len(set(there)) == 1 else usual)


def covers(ranges: Ranges, asked: Ranges) -> bool:
    """Whether ``ranges`` of the same symbols contain those asked for."""
    return set(ranges) == set(asked) and all(spans.covers(ranges[name], span) for name, span in asked.items())


def width(ranges: Ranges) -> int:
    """How many values of the symbols there are in it: what the widest has most of."""
    return math.prod(spans.count(span) for span in ranges.values())


def points_of(tasks: Sequence[SearchTask], ranges: Ranges) -> list[Point]:
    """Where libraries of these search tasks are compared: at the instances of all, as far as they are in the range.

    Each task weighs as much as any other. The range's ends, if no instance is in it.
    """
    weights: dict[tuple[tuple[str, int], ...], float] = {}
    for task in tasks:
        total = sum(instance.weight for instance in task.instances)
        for instance in task.instances:
            dims = task.workload.dims(instance.shape)
            if instance.weight and all(spans.contains(span, dims[name]) for name, span in ranges.items()):
                key = tuple(dims.items())
                weights[key] = weights.get(key, 0.0) + instance.weight / total
    heaviest = sorted(weights.items(), key=lambda item: -item[1])[:MAX_POINTS]
    return [Point(dict(dims), weight) for dims, weight in heaviest] or _ends(ranges)


def _ends(ranges: Ranges) -> list[Point]:
    corners = itertools.product(*(dict.fromkeys(spans.ends(span)) for span in ranges.values()))
    return [Point(dict(zip(ranges, corner, strict=True))) for corner in itertools.islice(corners, MAX_POINTS)]


def kernels_at(dispatcher: Dispatcher, points: Sequence[Point]) -> list[tuple[str, str]]:
    """The kernel that runs at each point and the point, as ``Medians`` names them."""
    chosen = (dispatcher.kernels[dispatcher.index_for(point.dims)] for point in points)
    return [(kernel.id, format_shape(point.dims)) for kernel, point in zip(chosen, points, strict=True)]


def times_of(dispatcher: Dispatcher, points: Sequence[Point], medians: Medians, *, predicted: bool) -> Times:
    """What a library takes at each point. ``predicted``: its table may speak where nothing was measured, which it may
    not if it is of another measuring protocol."""
    times: list[Time | None] = []
    for point, name in zip(points, kernels_at(dispatcher, points), strict=True):
        times.append(time_of(medians.get(name), dispatcher if predicted else None, point.dims))
    return times


class Predicts(Protocol):
    """The dispatch table of a library."""

    def predicted_latency_s(self, dims: Mapping[str, int]) -> float | None: ...


def time_of(median_s: float | None, table: Predicts | None, dims: Mapping[str, int]) -> Time | None:
    """The median where the kernel was measured, else what the table predicts; None without either."""
    if median_s is not None:
        return Time(median_s, measured=True)
    expected_s = table.predicted_latency_s(dims) if table else None
    return None if expected_s is None else Time(expected_s, measured=False)


def expected_s(points: Sequence[Point], times: Times) -> float | None:
    """The weighted mean of the times of all points, in seconds; None unless each is known."""
    known = [time for time in times if time is not None]
    if not known or len(known) < len(points):
        return None
    total = sum(point.weight * time.latency_s for point, time in zip(points, known, strict=True))
    return total / sum(point.weight for point in points)


def ratio(points: Sequence[Point], one: Times, other: Times) -> float | None:
    """The time of the other over that of the one, where both are known: above 1 the one is faster. None if nowhere."""
    pairs = [(p.weight, a.latency_s, b.latency_s) for p, a, b in zip(points, one, other, strict=True) if a and b]
    mine = sum(weight * latency_s for weight, latency_s, _ in pairs)
    return sum(weight * latency_s for weight, _, latency_s in pairs) / mine if mine else None


def choose(points: Sequence[Point], candidates: Sequence[Candidate]) -> int:
    """The index of the library to serve. Candidates stand in the order of their age, the oldest first.

    One is served in place of an older one if it is faster beyond noise: as timed in turns, if they were, else by what
    is recorded.
    """
    best = 0
    for index in range(1, len(candidates)):
        if _wins(points, candidates[index], candidates[best]):
            best = index
    return best


def _wins(points: Sequence[Point], challenger: Candidate, champion: Candidate) -> bool:
    if champion.digest in challenger.timed:
        return challenger.timed[champion.digest][1]
    gain = ratio(points, _without_luck(challenger.times, champion.times), champion.times)
    return gain is not None and gain > 1 + NOISE


def _without_luck(challenger: Times, champion: Times) -> Times:
    """The challenger's times, none that is only predicted below a measured one of the champion's."""
    return [
        Time(max(new.latency_s, old.latency_s), measured=False)
        if new is not None and old is not None and old.measured and not new.measured
        else new
        for new, old in zip(challenger, champion, strict=True)
    ]
