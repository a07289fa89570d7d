"""What is known of each kernel's latency at every shape of a range: measured where it was, else the model, corrected.

For a kernel that was measured at some shapes, the model's error there (in logarithms) is carried over to the shapes
between them, weighted by the inverse square of the distance in the logarithms of the dims: one kernel's error changes
slowly with the shape, so eight measured shapes say much about all 128.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baseline, Baselines, ErrorKind, MeasureResult, Phase, Roof, speed_correction
from tuner.schedule.space import MicroKernel

if TYPE_CHECKING:
    # What only looks at latencies, as the service does, loads no model.
    from tuner.search.cost_model._base import CostModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Reading = TypeVar("Reading", MeasureResult, Baseline)
ShapeKey = tuple[tuple[str, int], ...]
SMOOTHING = 0.02
"""Squared log distance below which the nearest measurement outweighs the others."""


class Measured:
    """The results of one search task by kernel and shape, each with one latency: the median of its readings, of those
    of the finalists' side-by-side timing alone if there are any. A kernel that failed once counts as failed."""

    def __init__(self, results: Iterable[MeasureResult] = ()) -> None:
        self._readings: dict[tuple[MicroKernel, ShapeKey], list[float]] = {}
        self._final: dict[tuple[MicroKernel, ShapeKey], list[float]] = {}
        self._latency_s: dict[MicroKernel, dict[ShapeKey, float]] = {}
        self._errors: Counter[str] = Counter()
        self.failed: set[MicroKernel] = set()
        self.trials = 0
        self.failures = 0
        self.add(results)

    def add(self, results: Iterable[MeasureResult]) -> None:
        for result in results:
            self.trials += 1
            if result.latency_s is None:
                self._errors[f"{result.error_kind}: {result.error}".removesuffix(": ")] += 1
                self.failures += 1
                # What the machine failed at says nothing against the kernel.
                if result.error_kind is not ErrorKind.MACHINE:
                    self.failed.add(result.kernel)
            else:
                self._add_reading(result, result.latency_s)

    def _add_reading(self, result: MeasureResult, latency_s: float) -> None:
        pair = (result.kernel, result.instance.values)
        self._readings.setdefault(pair, []).append(latency_s)
        if result.phase is Phase.FINAL:
            self._final.setdefault(pair, []).append(latency_s)
        # The fastest reading would be the luckiest one.
        median = statistics.median(self._final.get(pair) or self._readings[pair])
        self._latency_s.setdefault(result.kernel, {})[result.instance.values] = median

    def replace(self, kernel: MicroKernel, instance: WorkloadInstance, latency_s: float) -> None:
        """A latency that takes the place of all readings of a kernel at an instance."""
        self._final[kernel, instance.values] = [latency_s]
        self._latency_s.setdefault(kernel, {})[instance.values] = latency_s

    @property
    def kernels(self) -> list[MicroKernel]:
        """Every kernel that was measured and never failed, in the order of their first results."""
        return [kernel for kernel in self._latency_s if kernel not in self.failed]

    @property
    def tried(self) -> Set[MicroKernel]:
        """Every kernel that was measured or failed."""
        return self.failed | self._latency_s.keys()

    def latency_s(self, kernel: MicroKernel, shape: ShapeKey) -> float | None:
        return self._latency_s.get(kernel, {}).get(shape)

    @property
    def commonest_error(self) -> str:
        """What failed most often, and how often: ``3x crash: ...``; empty if nothing did."""
        return "".join(f"{count}x {text}" for text, count in self._errors.most_common(1))

    @property
    def finalists(self) -> list[MicroKernel]:
        """The kernels that were timed side by side and never failed."""
        timed = dict.fromkeys(kernel for kernel, _ in self._final)
        return [kernel for kernel in timed if kernel not in self.failed]

    @property
    def candidates(self) -> list[MicroKernel]:
        """What a library is chosen from: the finalists or, before there are any, every kernel that was measured."""
        return self.finalists or self.kernels

    def is_fastest(self, kernel: MicroKernel, instance: WorkloadInstance) -> bool:
        """Whether it is the fastest of several at this instance."""
        times = self.latencies_at(instance)
        return len(times) > 1 and times.get(kernel) == min(times.values())

    def readings(self, kernel: MicroKernel, instance: WorkloadInstance) -> int:
        """How often it was measured at this instance."""
        return len(self._readings.get((kernel, instance.values), ()))

    def latencies_of(self, kernel: MicroKernel) -> Mapping[ShapeKey, float]:
        """Its latency wherever it was measured, in that order."""
        return self._latency_s.get(kernel, {})

    def best_s(self, instance: WorkloadInstance) -> float | None:
        """The fastest time of any kernel at this instance."""
        return min(self.latencies_at(instance).values(), default=None)

    def latencies_at(self, instance: WorkloadInstance) -> dict[MicroKernel, float]:
        """The latency of every kernel that was measured at this instance and never failed."""
        shape = instance.values
        timed = ((kernel, times[shape]) for kernel, times in self._latency_s.items() if shape in times)
        return {kernel: time for kernel, time in timed if kernel not in self.failed}


def median_latencies(pair: Ints, latency_s: Floats, final: Bools) -> tuple[Ints, Floats]:
    """The latencies that ``Measured`` gives, for columns of results: [results] each, NaN where one failed.

    ``pair`` numbers the (kernel, instance) of each result, ``final`` says which belong to the side-by-side timing.
    Returns the pairs that were measured, sorted, and the latency of each.
    """
    timed = ~np.isnan(latency_s)
    timed &= final | ~np.isin(pair, pair[timed & final])
    pair, latency_s = pair[timed], latency_s[timed]
    order = np.lexsort((latency_s, pair))
    pairs, first, count = np.unique(pair[order], return_index=True, return_counts=True)
    ordered = latency_s[order]
    return pairs, (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2


def reference_anchor_s(results: Iterable[MeasureResult]) -> float | None:
    """The anchor's time at the first successful result: the device's reference speed. None if none was timed."""
    return next((result.anchor_s for result in results if result.ok and result.anchor_s), None)


def at_reference_speed(results: Iterable[Reading], anchor_s: float | None) -> list[Reading]:
    """Results or baselines as the device would have measured them at the speed at which its anchor takes
    ``anchor_s``."""
    return [_at_speed(result, anchor_s) for result in results]


def normalized(results: Sequence[MeasureResult]) -> list[MeasureResult]:
    """The results of a whole search at the device's reference speed."""
    return at_reference_speed(results, reference_anchor_s(results))


def compared_at(baselines: Baselines, anchor_s: float | None) -> Baselines:
    """The baselines at the speed at which the device's anchor takes ``anchor_s``, like the results."""
    roof = baselines.roof
    if roof is not None:
        slowdown = speed_correction(roof.anchor_s, anchor_s)
        roof = Roof(roof.flops_per_s / slowdown, roof.bytes_per_s / slowdown, anchor_s)
    return replace(baselines, points=tuple(at_reference_speed(baselines.points, anchor_s)), roof=roof)


def _at_speed(result: Reading, anchor_s: float | None) -> Reading:
    if result.latency_s is None:
        return result
    return replace(result, latency_s=result.latency_s * speed_correction(result.anchor_s, anchor_s))


def log_points(task: SearchTask, shapes: Sequence[Mapping[str, int]]) -> Floats:
    """[shapes, dims]: the dynamic dims, plus one, in logarithms."""
    dims = [task.workload.dims(shape) for shape in shapes]
    return np.log(np.array([[row[name] + 1 for name in task.workload.symbols] for row in dims], np.float64))


def latency_table(
    task: SearchTask,
    model: CostModel,
    measured: Measured,
    kernels: Sequence[MicroKernel],
    shapes: Sequence[Mapping[str, int]],
) -> Floats:
    """[kernels, shapes] expected latencies in seconds: as measured, or predicted and corrected by the kernel's own
    errors."""
    known = list(dict.fromkeys(key for kernel in kernels for key in measured.latencies_of(kernel)))
    known_shapes = [dict(key) for key in known]
    # In one question: a few more shapes take no longer.
    predicted = np.log(model.predict(kernels, [*shapes, *known_shapes]).latency_s)
    table, at_known = predicted[:, : len(shapes)], predicted[:, len(shapes) :]
    if not known:
        return np.exp(table)
    times = np.array([[measured.latency_s(kernel, key) or np.nan for key in known] for kernel in kernels])
    errors = np.log(times) - at_known
    distance = ((log_points(task, shapes)[:, None, :] - log_points(task, known_shapes)[None, :, :]) ** 2).sum(axis=2)
    weight = 1.0 / (distance + SMOOTHING * (distance > 0) + 1e-9)
    for row, error in enumerate(errors):
        known_here = np.isfinite(error)
        if known_here.any():
            own = weight[:, known_here]
            table[row] += (own * error[known_here]).sum(axis=1) / own.sum(axis=1)
    return np.exp(table)
