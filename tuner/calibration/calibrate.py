"""A device's calibration: probes measured by the ordinary builder and runner, levels read, rates fitted."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Protocol

import numpy as np

from tuner.calibration.cpu import CPU
from tuner.calibration.fit import Floats, Observed, clock_alone, errors, fitted
from tuner.calibration.kind import DeviceKind, Probe
from tuner.measure import Builder, DeviceFailed, Interrupted, Runner, RunRequest, never
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.program.target.calibration import VERSION, Calibration, Levels
from tuner.program.target.rates import TYPICAL, Rates
from tuner.records import MeasureResult, speed_correction
from tuner.schedule.space import MicroKernel

CALIBRATION_S = 60.0
"""The longest that a calibration may take, with starting compilers and the device."""
FIT_SHARE = 0.1
"""The share of that time which is left for the fit, and for a batch that is under way when the rest is over."""
MIN_PROBES, MIN_PRODUCTS = 60, 3
"""The least measurements, and products that they are of: fewer do not determine twenty rates."""
KINDS: Mapping[str, DeviceKind] = {"llvm": CPU}
"""How devices are calibrated, by the kind of their target."""
FOLDS = 3
"""Folds that products are dealt out into for the error that is stored: each takes a fit of its own."""

log = logging.getLogger(__name__)


class LevelRunner(Runner, Protocol):
    """A runner of one device that can measure what it reads from each level of memory."""

    def levels(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> Levels:
        """Raises DeviceFailed if the device cannot measure it, DeviceLost, WrongDevice, Interrupted."""


def calibrate(
    target: Target,
    threads: int,
    *,
    builder: Builder,
    runner: LevelRunner,
    within_s: float = CALIBRATION_S,
    interrupted: Callable[[], bool] = never,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration | None:
    """Measure and fit the device of ``runner`` for code of ``target`` on ``threads`` threads.

    Within ``within_s`` it ends, with what was measured by then; only a build that is under way takes longer. None, and
    a line in the log that says why, where too little was measured, or the caller interrupted it. Raises DeviceLost,
    WrongDevice, BuilderLost.
    """
    kind = KINDS[target.kind]
    began_s = clock()
    until_s = began_s + (1 - FIT_SHARE) * within_s

    def is_over() -> bool:
        return interrupted() or clock() > until_s

    measured = _Measured()
    levels: Levels | None = None
    is_doubted = False
    for probe in kind.probes(target, threads, seed):
        if is_over():
            break
        builds = builder.build(probe.task, probe.kernels)
        if not measured.batches:
            levels = _levels(runner, probe.task, is_over)
        requests = [RunRequest(build, probe.task.instances) for build in builds]
        measured.add(probe, runner.run(probe.task, requests, is_over))
        if not is_doubted and levels is not None and levels.flops_per_s < measured.fastest_flops_per_s(probe):
            # They were disturbed: a kernel does not do more multiply-adds than there can be.
            is_doubted, again = True, _levels(runner, probe.task, is_over)
            levels = levels if again is None else levels.or_better(again)
    every = measured.observed()
    in_unit = [each for each in every if kind.is_in_unit(each.task)]
    observed = [each for each in every if not kind.is_in_unit(each.task)]
    count = sum(each.count for each in observed)
    if interrupted() or count < MIN_PROBES or len(observed) < MIN_PRODUCTS:
        why = "it was interrupted" if interrupted() else f"{MIN_PROBES} of {MIN_PRODUCTS} products are needed"
        log.warning("no calibration: %d measurements of %d products; %s", count, len(observed), why)
        return None
    rates, before, after = _rates(observed, kind.centre(levels, target, threads), kind.fitted)
    if any(each.count for each in in_unit):
        # One product alone may determine a rate of theirs: none can be left out to judge by.
        rates = fitted(in_unit, rates, kind.in_unit)
    count += sum(each.count for each in in_unit)
    return Calibration(
        VERSION, threads, target.fingerprint, kind.completed(rates, levels, threads), levels, count, before, after,
        round(clock() - began_s, 1), datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def read_rates(task: SearchTask, runner: LevelRunner, interrupted: Callable[[], bool] = never) -> Rates:
    """The rates of a device that nobody has calibrated, by what it reads and issues alone: a second or so.

    The typical ones where it cannot tell. Raises DeviceLost, WrongDevice, BuilderLost.
    """
    target = task.known_target
    levels = _levels(runner, task, interrupted)
    return TYPICAL if levels is None else KINDS[target.kind].read(levels, target, task.threads)


@dataclass
class _Measured:
    """Results by product, in the order in which they came."""

    batches: int = 0
    _tasks: dict[str, SearchTask] = field(default_factory=dict)
    _results: dict[str, list[MeasureResult]] = field(default_factory=dict)

    def add(self, probe: Probe, results: Sequence[MeasureResult]) -> None:
        self.batches += 1
        key = probe.task.workload.key
        self._tasks[key] = probe.task
        self._results.setdefault(key, []).extend(each for each in results if each.ok)

    def fastest_flops_per_s(self, probe: Probe) -> float:
        """The greatest speed that a kernel of a product has shown, if that is of floats, as the peak is."""
        workload = probe.task.workload
        if {tensor.dtype for tensor in workload.tensors.values()} != {"float32"}:
            return 0.0
        found = (each for each in self._results[workload.key] if each.latency_s)
        speeds = (workload.flops(workload.dims(each.instance.shape)) / (each.latency_s or inf) for each in found)
        return max(speeds, default=0.0)

    def observed(self) -> list[Observed]:
        """What was observed, at one speed of the device: the median of its anchors."""
        anchors = [each.anchor_s for results in self._results.values() for each in results if each.anchor_s]
        anchor_s = statistics.median(anchors) if anchors else None
        found = ((self._tasks[key], results) for key, results in self._results.items() if results)
        return [_observed(task, results, anchor_s) for task, results in found]


def _observed(task: SearchTask, results: Sequence[MeasureResult], anchor_s: float | None) -> Observed:
    kernels: dict[MicroKernel, None] = dict.fromkeys(result.kernel for result in results)
    row, column = ({each: at for at, each in enumerate(several)} for several in (kernels, task.instances))
    latency_s = np.full((len(row), len(column)), np.nan)
    for result in results:
        if result.latency_s:
            at_one_speed = result.latency_s * speed_correction(result.anchor_s, anchor_s)
            latency_s[row[result.kernel], column[result.instance]] = at_one_speed
    return Observed(task, tuple(kernels), tuple(instance.shape for instance in task.instances), latency_s)


def _levels(runner: LevelRunner, task: SearchTask, interrupted: Callable[[], bool]) -> Levels | None:
    try:
        return runner.levels(task, interrupted)
    except Interrupted:
        return None
    except DeviceFailed as error:
        log.warning("theory goes on without the levels of memory: %s", error)
        return None


def _rates(observed: Sequence[Observed], centre: Rates, names: Sequence[str]) -> tuple[Rates, float, float]:
    """The rates, and half of the errors by ``centre`` and by fitted ones: each product by those of other folds."""
    before: list[Floats] = []
    after: list[Floats] = []
    for fold in range(FOLDS):
        held_out = observed[fold::FOLDS]
        others = [each for at, each in enumerate(observed) if at % FOLDS != fold]
        before.append(errors(held_out, clock_alone(others, centre)))
        after.append(errors(held_out, fitted(others, centre, names)))
    was, now = (float(np.median(np.concatenate(each))) for each in (before, after))
    if now < was:
        return fitted(observed, centre, names), was, now
    log.warning("calibration adjusts the clock alone: fitted rates are off by %.1f %%, typical ones by %.1f %%",
                100 * now, 100 * was)  # fmt: skip
    return clock_alone(observed, centre), was, was
