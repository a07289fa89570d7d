"""Searches to draw: made up with the synthetic device, small or huge, with whatever may be odd about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.fakes import TASK, WIDE, latency_s
from tuner.figures.view import SearchView
from tuner.library.dispatcher import Dispatcher, TableRow, bounded
from tuner.library.fitting import fit
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import Baseline, Baselines, ErrorKind, MeasureResult, Phase, Roof
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.observations import Measured
from tuner.search.summary import SearchSummary, Stage

T, S, B = ShapeVar("T", range(1, 129)), ShapeVar("S", range(1, 65)), ShapeVar("B", (1, 2, 4))
STATIC = SearchTask("dense", {"m": 64, "n": 96, "k": 32}, target=WIDE)
TWO = SearchTask("matmul", {"m": 16 * T, "n": 4 * S, "k": 32}, (T, S), target=WIDE, max_kernels=4)
THREE = SearchTask("matmul", {"m": 16 * T, "n": 4 * S, "k": 32 * B}, (T, S, B), target=WIDE, max_kernels=4)
TASKS = {"one": TASK, "two": TWO, "three": THREE, "static": STATIC}


def sampled(task: SearchTask, count: int, seed: int = 0) -> list[MicroKernel]:
    """Different kernels of the task's space."""
    space, rng = space_of(task), np.random.default_rng(seed)
    result: dict[MicroKernel, None] = {}
    while len(result) < count:
        result[space.sample(rng)] = None
    return list(result)


def trial(
    task: SearchTask, kernel: MicroKernel, instance: WorkloadInstance, rng: np.random.Generator, round_: int
) -> MeasureResult:
    """What the synthetic device takes, and a prediction that gets better from round to round."""
    if rng.random() < 0.06:
        kind = list(ErrorKind)[int(rng.integers(len(ErrorKind)))]
        return MeasureResult(kernel, instance, error_kind=kind, error="on purpose", round=round_)
    result = latency_s(task, kernel, instance.shape) * float(rng.lognormal(0, 0.02))
    predicted = result * float(rng.lognormal(0, 0.8 / (1 + round_)))
    return MeasureResult(kernel, instance, result, (result,), predicted_s=predicted, round=round_, anchor_s=2e-6)


def searched(task: SearchTask = TASK, kernels: int = 24, per_round: int = 6, seed: int = 0) -> list[MeasureResult]:
    """Every kernel at every instance, and the best four again, side by side."""
    rng, pool = np.random.default_rng(seed), sampled(task, kernels, seed)
    results = [
        trial(task, kernel, instance, rng, number // per_round)
        for number, kernel in enumerate(pool)
        for instance in task.instances
    ]
    best = sorted(Measured(results).kernels, key=lambda kernel: _total_s(task, kernel))[:4]
    last = kernels // per_round
    again = [trial(task, kernel, instance, rng, last) for instance in task.instances for kernel in best]
    return results + [replace(result, phase=Phase.FINAL, attempt=1) for result in again if result.ok]


def _total_s(task: SearchTask, kernel: MicroKernel) -> float:
    return sum(latency_s(task, kernel, instance.shape) for instance in task.instances)


def told(task: SearchTask, results: Sequence[MeasureResult]) -> list[SearchSummary]:
    """The progress of such a search, an entry for each round."""
    entries: list[SearchSummary] = []
    measured, default_s = Measured(), None
    for number in sorted({result.round for result in results}):
        measured.add([result for result in results if result.round == number])
        times = [measured.best_s(instance) for instance in task.instances]
        weighted = [i.weight * time for i, time in zip(task.instances, times, strict=True) if time is not None]
        best_s = sum(weighted) if len(weighted) == len(times) else None
        default_s = default_s or best_s
        trials, stage = measured.trials, Stage.SEARCH if number else Stage.THEORY
        now = SearchSummary(stage, number, trials, elapsed_s=1.7 * trials)
        entries.append(replace(now, objective_s=best_s, default_objective_s=default_s))
    return entries


def library(task: SearchTask, kernels: Sequence[MicroKernel]) -> Dispatcher:
    """A library of these kernels that serves every shape with the one that the synthetic device runs fastest."""
    names, shapes = task.workload.symbols, task.shapes()
    times = np.array([[latency_s(task, kernel, shape) for kernel in kernels] for shape in shapes])
    dims = [task.workload.dims(shape) for shape in shapes]
    points = np.array([[row[name] for name in names] for row in dims], np.int64)
    bounds = {name: task.workload.symbol_exprs[name].bounds(task.ranges) for name in names}
    bare = Dispatcher(task, tuple(kernels), 0, bounded(fit(names, points, times), bounds, 0))
    table = [(shape, bare.index_for(row), row_s) for shape, row, row_s in zip(shapes, dims, times, strict=True)]
    return replace(bare, table=tuple(TableRow(shape, index, float(row[index])) for shape, index, row in table))


def numpy_times(task: SearchTask) -> Baselines:
    """A library that is slow at small shapes, and a roof above all."""
    points = [
        Baseline("numpy", instance, 3e-6 + task.workload.flops(task.workload.dims(instance.shape)) / 30e9, 2e-6)
        for instance in task.instances
    ]
    return Baselines(tuple(points), Roof(110e9, 12e9, 2e-6))


def finished(task: SearchTask = TASK, kernels: int = 24, seed: int = 0) -> SearchView:
    """A search that has come to a library."""
    results = searched(task, kernels, seed=seed)
    measured = Measured(results)
    fastest = {i: measured.best_s(i) for i in task.instances}
    winners = [k for i in task.instances for k in measured.kernels if measured.latency_s(k, i.values) == fastest[i]]
    chosen = list(dict.fromkeys(winners))[: task.max_kernels]
    return SearchView(task, results, told(task, results), library(task, chosen), numpy_times(task))
