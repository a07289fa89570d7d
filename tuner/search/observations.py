"""What is known of each kernel's latency at every shape of a range: measured where it was, else the model, corrected.

For a kernel that was measured at some shapes, the model's error there (in logarithms) is carried over to the shapes
between them, weighted by the inverse square of the distance in the logarithms of the dims: one kernel's error changes
slowly with the shape, so eight measured shapes say much about all 128.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import Baseline, MeasureResult, Phase
from tuner.rules.space import MicroKernel

if TYPE_CHECKING:
    # What only looks at latencies, as the service does, loads no model.
    from tuner.search.cost_model._base import CostModel

Floats = NDArray[np.float64]
Reading = TypeVar("Reading", MeasureResult, Baseline)
ShapeKey = tuple[tuple[str, int], ...]
MOST_DRIFT = 2.0
"""The most that a device's speed is believed to have changed by between two measurements."""
OWN_ERROR_REACH = 0.02
"""Squared log distance at which the nearest measurement starts to share its say with others."""


class Measured:
    """The results of one search task by kernel and shape. Several attempts count as their median; those of
    the finalists, which are timed side by side, count alone."""

    def __init__(self, results: Iterable[MeasureResult] = ()) -> None:
        self._times: dict[MicroKernel, dict[ShapeKey, list[float]]] = {}
        self._final: dict[tuple[MicroKernel, ShapeKey], list[float]] = {}
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
                self.failed.add(result.kernel)
            else:
                times = self._times.setdefault(result.kernel, {})
                times.setdefault(result.instance.values, []).append(result.latency_s)
                if result.phase is Phase.FINAL:
                    self._final.setdefault((result.kernel, result.instance.values), []).append(result.latency_s)

    @property
    def kernels(self) -> list[MicroKernel]:
        """Every kernel that was measured and never failed, in the order of their first results."""
        return [kernel for kernel in self._times if kernel not in self.failed]

    def latency_s(self, kernel: MicroKernel, shape: ShapeKey) -> float | None:
        times = self._final.get((kernel, shape)) or self._times.get(kernel, {}).get(shape)
        return statistics.median(times) if times else None

    @property
    def commonest_error(self) -> str:
        """What failed most often, and how often: ``3x crash: ...``; empty if nothing did."""
        return "".join(f"{count}x {text}" for text, count in self._errors.most_common(1))

    @property
    def finalists(self) -> list[MicroKernel]:
        """Those that were timed side by side and never failed."""
        timed = dict.fromkeys(kernel for kernel, _ in self._final)
        return [kernel for kernel in timed if kernel not in self.failed]

    @property
    def candidates(self) -> list[MicroKernel]:
        """What a library is chosen from: the finalists or, before there are any, every kernel that was measured."""
        return self.finalists or self.kernels

    def leads(self, kernel: MicroKernel, instance: WorkloadInstance) -> bool:
        """Whether it is the fastest of several at this instance."""
        times = self._times_at(instance)
        return len(times) > 1 and times.get(kernel) == min(times.values())

    def readings(self, kernel: MicroKernel, instance: WorkloadInstance) -> int:
        return len(self._times.get(kernel, {}).get(instance.values, ()))

    def shapes(self, kernel: MicroKernel) -> list[ShapeKey]:
        return list(self._times.get(kernel, {}))

    def best_s(self, instance: WorkloadInstance) -> float | None:
        """The fastest time of any kernel at this instance."""
        return min(self._times_at(instance).values(), default=None)

    def fastest_at(self, instance: WorkloadInstance) -> tuple[MicroKernel, float] | None:
        """The fastest kernel at this instance and its time; None if none was measured there."""
        return min(self._times_at(instance).items(), key=lambda pair: pair[1], default=None)

    def _times_at(self, instance: WorkloadInstance) -> dict[MicroKernel, float]:
        times = {kernel: self.latency_s(kernel, instance.values) for kernel in self.kernels}
        return {kernel: time for kernel, time in times.items() if time is not None}


def first_anchor_s(results: Iterable[MeasureResult]) -> float | None:
    return next((result.anchor_s for result in results if result.ok and result.anchor_s), None)


def at_one_speed(results: Iterable[Reading], anchor_s: float | None) -> list[Reading]:
    """Results or baselines as a device would have measured them at the speed at which its anchor takes ``anchor_s``."""
    return [_at_speed(result, anchor_s) for result in results]


def comparable(results: Sequence[MeasureResult]) -> list[MeasureResult]:
    """The results of a whole search, at the speed that the device had at the first of them."""
    return at_one_speed(results, first_anchor_s(results))


def _at_speed(result: Reading, anchor_s: float | None) -> Reading:
    if result.latency_s is None:
        return result
    return replace(result, latency_s=result.latency_s * pace(result.anchor_s, anchor_s))


def pace(measured_at_s: float | None, anchor_s: float | None) -> float:
    """What a time that was measured while the anchor took ``measured_at_s`` is multiplied by, to be as it would be
    where the anchor takes ``anchor_s``; 1 where either is not known."""
    if not measured_at_s or not anchor_s:
        return 1.0
    return min(max(anchor_s / measured_at_s, 1 / MOST_DRIFT), MOST_DRIFT)


def log_points(task: SearchTask, shapes: Sequence[Mapping[str, int]]) -> Floats:
    """[shapes, dims]: the dynamic dims, plus one, in logarithms."""
    dims = [task.workload.dims(shape) for shape in shapes]
    return np.log(np.array([[row[name] + 1 for name in task.workload.dynamic_dims] for row in dims], np.float64))


def latency_table(
    task: SearchTask,
    model: CostModel,
    measured: Measured,
    kernels: Sequence[MicroKernel],
    shapes: Sequence[Mapping[str, int]],
) -> Floats:
    """[kernels, shapes] expected latencies in seconds."""
    table = np.log(model.predict(kernels, shapes).latency_s)
    known = list(dict.fromkeys(key for kernel in kernels for key in measured.shapes(kernel)))
    if not known:
        return np.exp(table)
    times = np.array([[measured.latency_s(kernel, key) or np.nan for key in known] for kernel in kernels])
    known_shapes = [dict(key) for key in known]
    errors = np.log(times) - np.log(model.predict(kernels, known_shapes).latency_s)
    distance = ((log_points(task, shapes)[:, None, :] - log_points(task, known_shapes)[None, :, :]) ** 2).sum(axis=2)
    say = 1.0 / (distance + OWN_ERROR_REACH * (distance > 0) + 1e-9)
    for row, own in enumerate(errors):
        here = np.isfinite(own)
        if here.any():
            table[row] += (say[:, here] * own[here]).sum(axis=1) / say[:, here].sum(axis=1)
    return np.exp(table)
