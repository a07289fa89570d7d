"""A new library against the one that is served: both timed in turns on the device, at the instances of the task.

Latencies of two jobs were measured on different days; only side by side do small differences mean anything. A round is
one reading of each library at each instance, the two readings right after one another and in changing order.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY
from tuner.measure import BuildResult, Interrupted, Runner, RunRequest, never
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import is_current
from tuner.schedule.space import MicroKernel
from tuner.search.observations import at_reference_speed, reference_anchor_s
from tuner.storage import Comparison

COMPARE_S = 15.0
"""The time that a comparison may take; it ends after the round in which that is over."""
ROUNDS, MIN_ROUNDS = 5, 3
MIN_NOISE = 0.005
"""The least relative difference by which two libraries are told apart, however well their rounds agree."""
FAILED_RATIO = 1000.0
"""The ratio to a library that computes wrongly or crashes."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A library in a comparison. ``toolchain`` is what it was built with."""

    digest: str
    dispatcher: Dispatcher
    binary: bytes
    toolchain: Mapping[str, str]

    @staticmethod
    def of(manifest: JsonObject, dispatch: JsonObject, files: Mapping[str, bytes]) -> Contender:
        """Raises ShapewrightError for what this version cannot read."""
        try:
            dispatcher = Dispatcher.from_json(dispatch)
            return Contender(str(manifest["digest"]), dispatcher, files[LIBRARY], dict(manifest.get("toolchain") or {}))
        except (KeyError, TypeError, ValueError) as error:
            raise ShapewrightError(f"it is not what this version builds ({type(error).__name__}: {error})") from error

    def kernel_at(self, task: SearchTask, instance: WorkloadInstance) -> MicroKernel:
        """What it runs at an instance of ``task``, whose shape variables need not be those that it was made for."""
        return self.dispatcher.kernels[self.dispatcher.index_for(task.workload.dims(instance.shape))]


class _Failed(Exception):
    """A library failed on the device. ``result`` says how."""

    def __init__(self, contender: Contender, result: MeasureResult) -> None:
        super().__init__(f"library {contender.digest[:12]} at {result.instance}: {result.error}")
        self.contender, self.result = contender, result


def compare(
    task: SearchTask,
    runner: Runner,
    new: Contender,
    served: Contender,
    *,
    limit_s: float = COMPARE_S,
    interrupted: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
) -> Comparison | None:
    """How the new library does beside the one that is served; None where that cannot be said.

    Where both run the very same kernel nothing is timed: there they are equal. It cannot be said where the device fails
    or takes too long, where it is interrupted, and of a library whose kernels another version of a rule made. Raises
    DeviceLost.
    """
    if not all(is_current(kernel) for kernel in served.dispatcher.kernels):
        return None
    alike = [
        instance
        for instance in task.instances
        if new.toolchain == served.toolchain and new.kernel_at(task, instance) == served.kernel_at(task, instance)
    ]
    differing = [instance for instance in task.instances if instance not in alike]
    if not differing:
        return Comparison(served.digest, 1.0, 0.0, verified=True)
    try:
        read = partial(_reading, task, runner, interrupted)
        rounds = _rounds(read, (new, served), differing, limit_s, clock)
    except Interrupted:
        return None
    except _Failed as failure:
        if failure.result.error_kind not in (ErrorKind.WRONG, ErrorKind.CRASH):
            return None
        is_new = failure.contender is new
        return Comparison(served.digest, 1.0 if is_new else FAILED_RATIO, 0.0, verified=not is_new)
    if len(rounds) < MIN_ROUNDS:
        return None
    shared_s = sum(instance.weight * _expected_s(task, new, instance) for instance in alike)
    ratios = [math.log((shared_s + served_s) / (shared_s + new_s)) for new_s, served_s in rounds]
    noise = 2 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Comparison(served.digest, math.exp(statistics.median(ratios)), max(MIN_NOISE, noise), verified=True)


def _rounds(
    read: Callable[[Contender, WorkloadInstance], MeasureResult],
    contenders: tuple[Contender, Contender],
    instances: Sequence[WorkloadInstance],
    limit_s: float,
    clock: Callable[[], float],
) -> list[tuple[float, float]]:
    """The weighted time of both libraries in each round. Raises _Failed, Interrupted."""
    until = clock() + limit_s
    anchor_s: float | None = None
    rounds: list[tuple[float, float]] = []
    while len(rounds) < ROUNDS and clock() < until:
        total = [0.0, 0.0]
        for number, instance in enumerate(instances):
            # Whoever comes second finds the caches and the clock as the first one left them.
            order = (0, 1) if (number + len(rounds)) % 2 == 0 else (1, 0)
            for which in order:
                result = read(contenders[which], instance)
                anchor_s = anchor_s or reference_anchor_s([result])
                (level,) = at_reference_speed([result], anchor_s)
                total[which] += instance.weight * (level.latency_s or 0.0)
        rounds.append((total[0], total[1]))
    return rounds


def _reading(
    task: SearchTask, runner: Runner, interrupted: Callable[[], bool], contender: Contender, instance: WorkloadInstance
) -> MeasureResult:
    # The kernel says how constants are packed, which is the same for all of a library; what runs is the library.
    build = BuildResult(contender.kernel_at(task, instance), contender.binary, 0.0)
    results = runner.run(task, [RunRequest(build, (instance,))], interrupted)
    if not results:
        raise Interrupted("the comparison is no longer wanted")
    if not results[0].ok:
        raise _Failed(contender, results[0])
    return results[0]


def _expected_s(task: SearchTask, library: Contender, instance: WorkloadInstance) -> float:
    return library.dispatcher.predicted_latency_s(task.workload.dims(instance.shape)) or 0.0
