"""The results of a search as columns: figures of a hundred thousand trials are made of arrays, not of objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule.space import MicroKernel
from tuner.search.observations import median_latencies

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

KINDS = tuple(ErrorKind)


@dataclass(frozen=True)
class Columns:
    """One entry for each result, in order: the index of its kernel in ``kernels``, of its instance in ``instances``
    (the task's, then any other), its latency and what the model expected (seconds, NaN where there is none), its
    round, whether it is a trial of the default, whether one of the finalists' side-by-side timing, and its error
    kind's index in KINDS (-1: none)."""

    kernels: tuple[MicroKernel, ...]
    instances: tuple[WorkloadInstance, ...]
    kernel: Ints
    instance: Ints
    latency_s: Floats
    predicted_s: Floats
    round: Ints
    theory: Bools
    final: Bools
    kind: Ints

    @cached_property
    def sound(self) -> Bools:
        """[kernels]: those that never failed."""
        sound = np.ones(len(self.kernels), np.bool_)
        sound[self.kernel[np.isnan(self.latency_s)]] = False
        return sound

    @cached_property
    def medians(self) -> tuple[Ints, Ints, Floats]:
        """Every measured (kernel, instance) once, sorted, with its latency (see tuner.search.observations)."""
        width = max(1, len(self.instances))
        pairs, latency = median_latencies(self.kernel * width + self.instance, self.latency_s, self.final)
        return *np.divmod(pairs, width), latency

    @cached_property
    def fastest(self) -> tuple[Ints, Floats]:
        """[instances] each: the fastest kernel that never failed (-1 where there is none) and its latency (NaN)."""
        return self._fastest(self.sound[self.medians[0]])

    @cached_property
    def default(self) -> tuple[Ints, Floats]:
        """[instances] each: the default's kernel and latency, the fastest of those that the cost model chose
        before anything was measured; -1 and NaN where there is none."""
        kernel, instance, _ = self.medians
        width = max(1, len(self.instances))
        timed = self.theory & ~np.isnan(self.latency_s)
        default = np.isin(kernel * width + instance, (self.kernel * width + self.instance)[timed])
        return self._fastest(default & self.sound[kernel])

    @property
    def best_s(self) -> Floats:
        """[instances]: the fastest latency there, NaN where there is none."""
        return self.fastest[1]

    def table(self, kernels: Sequence[int]) -> Floats:
        """[kernels, instances]: latencies in seconds, NaN where one was not measured (or is no kernel's index: -1)."""
        row_of = np.full(len(self.kernels) + 1, -1, np.int64)
        row_of[list(kernels)] = np.arange(len(kernels))
        row_of[-1] = -1
        table = np.full((len(kernels), len(self.instances)), np.nan)
        kernel, instance, latency = self.medians
        wanted = row_of[kernel] >= 0
        table[row_of[kernel[wanted]], instance[wanted]] = latency[wanted]
        return table

    def index_of(self, kernels: Sequence[MicroKernel]) -> list[int]:
        """The indices of these kernels; -1 for one that was never tried."""
        known = {kernel: index for index, kernel in enumerate(self.kernels)}
        return [known.get(kernel, -1) for kernel in kernels]

    def relative(self) -> Floats:
        """[kernels]: the best's latency over the kernel's, in the mean of the instances that it was measured at: 1 for
        one that is the best wherever it was tried. NaN for those that failed or were never measured."""
        kernel, instance, latency = self.medians
        kept = self.sound[kernel]
        total = np.bincount(kernel[kept], self.best_s[instance[kept]] / latency[kept], len(self.kernels))
        count = np.bincount(kernel[kept], minlength=len(self.kernels))
        mean = np.full(len(self.kernels), np.nan)
        np.divide(total, count, out=mean, where=count > 0)
        return mean

    def _fastest(self, allowed: Bools) -> tuple[Ints, Floats]:
        """The fastest kernel (or -1) and its latency (or NaN) at each instance, of the measured pairs ``allowed``."""
        kernel, instance, latency = (column[allowed] for column in self.medians)
        order = np.lexsort((latency, instance))
        measured, first = np.unique(instance[order], return_index=True)
        best, times = np.full(len(self.instances), -1, np.int64), np.full(len(self.instances), np.nan)
        best[measured], times[measured] = kernel[order][first], latency[order][first]
        return best, times


def columns_of(instances: Sequence[WorkloadInstance], results: Sequence[MeasureResult]) -> Columns:
    """``results`` as columns; ``instances`` are the task's."""
    kernels: dict[MicroKernel, int] = {}
    index_of = {instance.values: index for index, instance in enumerate(instances)}
    known = list(instances)
    kernel, instance_index = [], []
    for result in results:
        kernel.append(kernels.setdefault(result.kernel, len(kernels)))
        values = result.instance.values
        if values not in index_of:
            index_of[values] = len(known)
            known.append(result.instance)
        instance_index.append(index_of[values])
    nan = float("nan")
    return Columns(
        kernels=tuple(kernels),
        instances=tuple(known),
        kernel=np.array(kernel, np.int64),
        instance=np.array(instance_index, np.int64),
        latency_s=np.array([nan if r.latency_s is None else r.latency_s for r in results], np.float64),
        predicted_s=np.array([nan if r.predicted_s is None else r.predicted_s for r in results], np.float64),
        round=np.array([r.round for r in results], np.int64),
        theory=np.array([r.is_theory for r in results], np.bool_),
        final=np.array([r.phase is Phase.FINAL for r in results], np.bool_),
        kind=np.array([-1 if r.error_kind is None else KINDS.index(r.error_kind) for r in results], np.int64),
    )
