"""The answer to "what is best for this shape?", and how it was found. No compiler needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.library.dispatcher import Dispatcher, is_within, kernel_json, log_distance, symbol_bounds
from tuner.program.task import SearchTask, check_shape
from tuner.program.workload import JsonObject
from tuner.records import TuningRecord
from tuner.rules import safe_kernel
from tuner.rules.space import MicroKernel


class Match(StrEnum):
    """How a lookup matched: measured at this very shape; chosen by the dispatcher; the kernel of the nearest measured
    shape; the default that is right everywhere."""

    EXACT = "exact"
    DISPATCHED = "dispatched"
    NEAREST = "nearest"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class BestAnswer:
    """A kernel for a shape. Latencies in seconds, None where nothing is known."""

    match: Match
    kernel: MicroKernel
    latency_s: float | None
    predicted_latency_s: float | None
    served_by: MicroKernel | None = None
    """What the library runs for this shape: the fastest record may be of a kernel that it does not have."""

    def to_json(self) -> JsonObject:
        return {
            "match": self.match.value,
            "kernel": kernel_json(self.kernel),
            "latency_s": self.latency_s,
            "predicted_latency_s": self.predicted_latency_s,
        }


def dims_of(task: SearchTask, shape: Mapping[str, int]) -> dict[str, int]:
    """The values of the symbols of the task's workload at ``shape``, which gives just those or the task's variables.

    Raises InvalidInput on field ``shape``.
    """
    if set(shape) == set(task.workload.symbols):
        return {name: shape[name] for name in task.workload.symbols}
    check_shape(task, shape)
    return task.workload.dims(shape)


def best(
    task: SearchTask,
    dispatcher: Dispatcher | None,
    exact: TuningRecord | None,
    records: Sequence[TuningRecord],
    dims: Mapping[str, int],
) -> BestAnswer:
    """The best kernel known for these values of the symbols.

    ``exact`` is the fastest record of just these, ``records`` are others of the same workload, target and number of
    threads; both are in symbols. The library of theory is measured on every instance first, so the fastest record is
    never slower than the default there.
    """
    predicted = dispatcher.predicted_latency_s(dims) if dispatcher else None
    served = dispatcher.kernels[dispatcher.index_for(dims)] if dispatcher else None
    if exact is not None:
        return BestAnswer(Match.EXACT, exact.result.kernel, exact.result.latency_s, predicted, served)
    if dispatcher is not None and served is not None:
        match = Match.DISPATCHED if dispatcher.in_bounds(dims) else Match.DEFAULT
        return BestAnswer(match, served, None, predicted, served)
    nearest = _nearest(records, dims)
    if nearest is not None and is_within(dims, symbol_bounds(task)):
        return BestAnswer(Match.NEAREST, nearest, None, None)
    return BestAnswer(Match.DEFAULT, safe_kernel(task), None, None)


def _nearest(records: Sequence[TuningRecord], dims: Mapping[str, int]) -> MicroKernel | None:
    """The fastest kernel of the measured sizes that are nearest in the logarithms of the symbols."""

    def distance(record: TuningRecord) -> tuple[float, float]:
        return (log_distance(record.result.instance.shape, dims), record.result.latency_s or math.inf)

    usable = [r for r in records if r.result.ok and set(r.result.instance.shape) == set(dims)]
    return min(usable, key=distance).result.kernel if usable else None
