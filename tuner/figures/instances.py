"""Each instance of a search: what runs there, and how its time compares with others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.figures.shapes import served
from tuner.figures.view import SearchView
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NUMPY
from tuner.schedule.space import MicroKernel


@dataclass(frozen=True, slots=True)
class InstanceLine:
    """An instance: the kernel that the library runs there (before there is one, the fastest), its latency, the best
    measured there, the default's and NumPy's. Seconds; None where it was not measured."""

    instance: WorkloadInstance
    kernel: MicroKernel | None
    label: str
    latency_s: float | None
    best_s: float | None
    default_s: float | None
    numpy_s: float | None
    trials: int

    @property
    def shape(self) -> str:
        return str(self.instance) or "the one shape"

    @property
    def over_default(self) -> float | None:
        return self._over(self.default_s)

    @property
    def over_numpy(self) -> float | None:
        return self._over(self.numpy_s)

    def _over(self, other_s: float | None) -> float | None:
        return other_s / self.latency_s if other_s and self.latency_s else None


def instance_lines(view: SearchView) -> list[InstanceLine]:
    """The task's instances in their order."""
    kernels, times = served(view)
    columns, default = view.columns, view.columns.default[1]
    numpy = {point.instance.values: point.latency_s for point in view.baselines.points if point.name == NUMPY}
    trials = np.bincount(columns.instance, minlength=len(columns.instances))
    return [
        InstanceLine(
            instance,
            kernel,
            view.label(kernel) if kernel else "",
            _known(times[index]),
            _known(columns.best_s[index]),
            _known(default[index]),
            numpy.get(instance.values),
            int(trials[index]),
        )
        for index, (instance, kernel) in enumerate(zip(view.task.instances, kernels, strict=True))
    ]


def _known(seconds: float) -> float | None:
    return float(seconds) if np.isfinite(seconds) else None
