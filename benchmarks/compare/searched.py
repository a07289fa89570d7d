"""Libraries of searches: one of a benchmark's own, or several of one workload that are compared with one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Report, say
from benchmarks.harness.suite import Benchmark
from benchmarks.rivals import OURS
from tuner.program.job.task import SearchTask
from tuner.program.target.rates import Rates
from tuner.records import MeasureResult
from tuner.search.observations import Measured, at_reference_speed, reference_anchor_s

if TYPE_CHECKING:
    from shapewright.session import TuneResult


def search(task: SearchTask, seed: int, folder: Path, **budget: Any) -> TuneResult:
    """A search on this machine, its library in ``folder``. ``budget``: what ``tune_here`` takes, as ``trials``,
    ``seconds`` or ``policy``."""
    from shapewright.session import tune_here  # noqa: PLC0415 - XGBoost, once the threads are limited

    result = tune_here(task, seed=seed, **budget)
    result.save(folder)
    return result


def read_here(task: SearchTask) -> Rates:
    """What this machine reads and issues, whether it was calibrated or not."""
    from tuner.calibration import read_rates  # noqa: PLC0415 - once the threads are limited
    from tuner.measure.local import local_runner  # noqa: PLC0415

    with local_runner() as runner:
        return read_rates(task, runner)


def tuned_library(
    benchmark: Benchmark, budget: Mapping[str, Any], seed: int, folder: Path, report: Report
) -> TuneResult:
    """A search, told to ``report``; its library is in ``folder``, under OURS."""
    tuned = search(benchmark.task, seed, folder / OURS, **budget)
    report.tuning.append({"workload": benchmark.name, **tuned.summary})
    say(f"{benchmark.name}: {tuned.summary['trials']} trials, {tuned.summary['elapsed_s']:.0f} s")
    return tuned


def best_so_far(task: SearchTask, results: Sequence[MeasureResult]) -> list[float | None]:
    """The weighted time of the best kernels so far after each trial, in seconds at one speed of the device; None until
    every instance has one."""
    anchor_s, times, measured = reference_anchor_s(results), list[float | None](), Measured()
    for result in at_reference_speed(results, anchor_s):
        measured.add([result])
        best = [(instance.weight, measured.best_s(instance)) for instance in task.instances]
        total = sum(weight * (best_s or float("inf")) for weight, best_s in best)
        times.append(total if math.isfinite(total) else None)
    return times
