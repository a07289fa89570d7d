"""The answer to "what is best for this shape?", and how it was found. No compiler needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.library.dispatcher import Dispatcher, kernel_json
from tuner.program.task import SearchTask, check_shape
from tuner.program.workload import JsonObject
from tuner.records import TuningRecord
from tuner.rules import rule_for
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


def best(
    task: SearchTask,
    dispatch: JsonObject | None,
    exact: TuningRecord | None,
    records: Sequence[TuningRecord],
    shape: Mapping[str, int],
) -> BestAnswer:
    """The best kernel known for ``shape``.

    ``exact`` is the fastest record of this very shape, ``records`` are others of the same workload, target and number
    of threads. The library of theory is measured on every instance first, so the fastest record is never slower than
    the default there. Raises InvalidInput on field ``shape``.
    """
    check_shape(task, shape)
    dispatcher = Dispatcher.from_json(dispatch) if dispatch else None
    predicted = dispatcher.predicted_latency_s(shape) if dispatcher else None
    served = dispatcher.kernel_for(shape) if dispatcher else None
    if exact is not None:
        return BestAnswer(Match.EXACT, exact.result.kernel, exact.result.latency_s, predicted, served)
    if dispatcher is not None and served is not None:
        match = Match.DISPATCHED if dispatcher.in_range(shape) else Match.DEFAULT
        return BestAnswer(match, served, None, predicted, served)
    nearest = _nearest(task, records, shape)
    if nearest is not None and task.contains(shape):
        return BestAnswer(Match.NEAREST, nearest, None, None)
    return BestAnswer(Match.DEFAULT, rule_for(task.workload).safe_kernel(task), None, None)


def _nearest(task: SearchTask, records: Sequence[TuningRecord], shape: Mapping[str, int]) -> MicroKernel | None:
    """The fastest kernel of the measured shape that is nearest in the logarithms of the dims."""
    wanted = task.workload.dims(shape)

    def distance(record: TuningRecord) -> tuple[float, float]:
        dims = task.workload.dims(record.result.instance.shape)
        return (
            sum(abs(math.log((dims[dim] + 1) / (wanted[dim] + 1))) for dim in wanted),
            record.result.latency_s or math.inf,
        )

    usable = [r for r in records if r.result.ok and set(r.result.instance.shape) == set(shape)]
    return min(usable, key=distance).result.kernel if usable else None
