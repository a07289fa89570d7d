"""Jobs side by side: equal workloads paired up, and how many times as fast each job's kernels are as the first job's.

Two searches are equal if they tune the same workload on the same target with the same number of threads and caches in
the same state; the others are listed with what is unlike. A shape's latency is the median of the readings of the kernel
that the library runs there (before there is one, of the fastest kernel), brought to one speed of the device. The jobs
were not measured in turns: where a small difference matters, ``shapewright check DIR --against DIR`` times two
libraries in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.figures.columns import Floats
from tuner.figures.shapes import served
from tuner.figures.view import SearchView
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult, Phase, speed_correction
from tuner.search.observations import reference_anchor_s
from tuner.search.verdict import MIN_NOISE, Ratio, between

RESAMPLES = 400
LEVEL = 0.95
METHOD = (
    "Speed-ups over the first job: ratios of median latencies at one speed of the device. Intervals of 95 % by "
    f"bootstrap of readings and their samples, and never narrower than {100 * MIN_NOISE:g} % either side: the jobs "
    "were not measured in turns. A ratio whose interval holds 1 is equal."
)

Dims = tuple[tuple[str, int], ...]
Likeness = tuple[str, str, int, Cache]


@dataclass(frozen=True, slots=True)
class Side:
    """One search task of a job that is compared."""

    job_id: str
    position: int
    view: SearchView

    @property
    def likeness(self) -> Likeness:
        return likeness(self.view.task)


def likeness(task: SearchTask) -> Likeness:
    """Workload key, target fingerprint, threads, caches: equal for searches that can be compared."""
    return task.workload.key, task.known_target.fingerprint, task.threads, task.cache


@dataclass(frozen=True, slots=True)
class AtShape:
    """What one job measured at a shape: None where it did not measure it. ``ratio`` is None of the first job, too."""

    job_id: str
    latency_s: float | None
    kernel_id: str | None
    readings: int
    ratio: Ratio | None


@dataclass(frozen=True, slots=True)
class ShapeLine:
    """One shape, with an entry for each job in their order."""

    shape: dict[str, int]
    weight: float
    jobs: tuple[AtShape, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The weighted time of the shapes that this job and the first both measured, in seconds, and ``shapes`` of them."""

    job_id: str
    position: int
    kernels: int | None
    shapes: int
    total_s: float | None
    ratio: Ratio | None


@dataclass(frozen=True, slots=True)
class Pairing:
    """Equal search tasks of several jobs; the first of ``totals`` is what the others are compared with."""

    workload_key: str
    workload: str
    target_fingerprint: str
    threads: int
    cache: str
    totals: tuple[Total, ...]
    shapes: tuple[ShapeLine, ...]


@dataclass(frozen=True, slots=True)
class Unlike:
    """A search task that no other job has, and what is unlike."""

    job_id: str
    position: int
    workload_key: str
    workload: str
    target_fingerprint: str
    threads: int
    cache: str
    reason: str


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Several jobs compared: over their equal workloads, and what they do not share."""

    pairings: tuple[Pairing, ...]
    unlike: tuple[Unlike, ...]
    method: str = METHOD


def side_by_side(sides: Sequence[Side]) -> SideBySide:
    """Search tasks of several jobs, in the order in which the jobs are to be shown; of equal ones of a job the first
    counts."""
    alike: dict[Likeness, dict[str, Side]] = {}
    for side in sides:
        alike.setdefault(side.likeness, {}).setdefault(side.job_id, side)
    pairings = [_pairing(list(group.values())) for group in alike.values() if len(group) > 1]
    alone = [side for group in alike.values() if len(group) == 1 for side in group.values()]
    return SideBySide(tuple(pairings), tuple(_unlike(side, sides) for side in alone))


def _unlike(side: Side, sides: Iterable[Side]) -> Unlike:
    key, target, threads, cache = side.likeness
    others = [other.likeness for other in sides if other.job_id != side.job_id]
    same = [other for other in others if other[0] == key]
    if not same:
        reason = "no other job has this workload"
    elif all(other[1] != target for other in same):
        reason = f"the same workload on another target: {', '.join(sorted({other[1] for other in same}))}"
    elif all(other[2] != threads for other in same if other[1] == target):
        counts = ", ".join(map(str, sorted({other[2] for other in same if other[1] == target})))
        reason = f"the same workload on another number of threads: {counts}"
    else:
        caches = sorted({other[3].value for other in same if other[1:3] == (target, threads)})
        reason = f"the same workload with caches in another state: {', '.join(caches)}"
    return Unlike(side.job_id, side.position, key, str(side.view.task.workload), target, threads, cache.value, reason)


# -- one group of equal searches -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Timed:
    """The kernel of a job at a shape: the samples of each of its readings in seconds, and resampled medians [n]."""

    kernel_id: str
    latency_s: float
    readings: int
    resampled: Floats


def _pairing(sides: list[Side]) -> Pairing:
    first, over = sides[0].view, sides[0].job_id
    anchor_s, rng = reference_anchor_s(first.results), np.random.default_rng(0)
    timed = [_timed(side.view, anchor_s, rng) for side in sides]
    shapes = {_dims(side.view, instance): (instance, side) for side in sides[::-1] for instance in _instances(side)}
    ordered = sorted(shapes, key=lambda dims: [value for _, value in dims])
    lines = [
        ShapeLine(
            dict(shapes[dims][0].shape),
            shapes[dims][0].weight,
            tuple(
                _at(side.job_id, times.get(dims), timed[0].get(dims), over)
                for side, times in zip(sides, timed, strict=True)
            ),
        )
        for dims in ordered
    ]
    weights = {dims: shapes[dims][0].weight for dims in ordered}
    totals = [_total(side, times, timed[0], weights, over) for side, times in zip(sides, timed, strict=True)]
    key, target, threads, cache = sides[0].likeness
    return Pairing(key, str(first.task.workload), target, threads, cache.value, tuple(totals), tuple(lines))


def _instances(side: Side) -> Sequence[WorkloadInstance]:
    return side.view.task.instances


def _dims(view: SearchView, instance: WorkloadInstance) -> Dims:
    """A shape in the workload's own symbols: jobs may call their shape variables as they like."""
    return tuple(sorted(view.task.workload.dims(instance.shape).items()))


def _at(job_id: str, timed: _Timed | None, first: _Timed | None, over: str) -> AtShape:
    if timed is None:
        return AtShape(job_id, None, None, 0, None)
    ratio = None
    if first is not None and first is not timed:
        ratio = _ratio(over, first.latency_s / timed.latency_s, first.resampled / timed.resampled)
    return AtShape(job_id, timed.latency_s, timed.kernel_id, timed.readings, ratio)


def _total(
    side: Side, timed: dict[Dims, _Timed], first: dict[Dims, _Timed], weights: dict[Dims, float], over: str
) -> Total:
    shared = [dims for dims in weights if dims in timed and dims in first and weights[dims] > 0]
    dispatcher = side.view.dispatcher
    kernels = None if dispatcher is None else len(dispatcher.kernels)
    if not shared:
        return Total(side.job_id, side.position, kernels, 0, None, None)
    own, other = (sum(weights[dims] * times[dims].latency_s for dims in shared) for times in (timed, first))
    if timed is first:
        return Total(side.job_id, side.position, kernels, len(shared), own, None)
    resampled = [sum(weights[dims] * times[dims].resampled for dims in shared) for times in (first, timed)]
    ratio = _ratio(over, other / own, np.asarray(resampled[0] / resampled[1]))
    return Total(side.job_id, side.position, kernels, len(shared), own, ratio)


def _ratio(over: str, ratio: float, resampled: Floats) -> Ratio:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return between(over, ratio, float(low), float(high))


def _timed(view: SearchView, anchor_s: float | None, rng: np.random.Generator) -> dict[Dims, _Timed]:
    """What a job measured at its instances, at the speed of the device at which its anchor takes ``anchor_s``."""
    level = speed_correction(reference_anchor_s(view.results), anchor_s)
    kernels, times = served(view)
    wanted = {
        (kernel, instance.values): instance
        for kernel, instance, latency_s in zip(kernels, view.task.instances, times, strict=True)
        if kernel is not None and np.isfinite(latency_s)
    }
    readings: dict[object, list[MeasureResult]] = {pair: [] for pair in wanted}
    for result in view.results:
        if result.ok and (pair := (result.kernel, result.instance.values)) in readings:
            readings[pair].append(result)
    latencies = {instance.values: float(time) for instance, time in zip(view.task.instances, times, strict=True)}
    return {
        _dims(view, instance): _Timed(
            pair[0].id, level * latencies[pair[1]], len(_deciding(readings[pair])),
            level * _resampled(_deciding(readings[pair]), rng),
        )
        for pair, instance in wanted.items()
    }  # fmt: skip


def _deciding(readings: list[MeasureResult]) -> list[MeasureResult]:
    """Those of the finalists' side-by-side timing alone, if there are any (tuner.search.observations)."""
    return [each for each in readings if each.phase is Phase.FINAL] or readings


def _resampled(readings: list[MeasureResult], rng: np.random.Generator) -> Floats:
    """[RESAMPLES] medians over readings, each the median of its samples, both drawn with replacement."""
    count = len(readings)
    medians = np.stack([_medians(each, count, rng) for each in readings])
    drawn = rng.integers(count, size=(RESAMPLES, count))
    slots = medians[drawn, np.arange(RESAMPLES)[:, None], np.arange(count)]
    resampled: Floats = np.median(slots, axis=1)
    return resampled


def _medians(reading: MeasureResult, slots: int, rng: np.random.Generator) -> Floats:
    """[RESAMPLES, slots] medians of the samples of one reading, drawn with replacement, at the reading's latency."""
    samples = np.array(reading.samples_s or (reading.latency_s,), np.float64)
    drawn = samples[rng.integers(len(samples), size=(RESAMPLES, slots, len(samples)))]
    # Latencies are at the reference speed of their search, samples as they were measured.
    medians: Floats = np.median(drawn, axis=2) * ((reading.latency_s or 0.0) / float(np.median(samples)))
    return medians
