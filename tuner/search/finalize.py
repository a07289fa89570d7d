"""The library of a search's results: select the set, and fit the dispatcher."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.library.dispatcher import Dispatcher, TableRow, Tree, bounded, symbol_bounds
from tuner.library.fitting import chosen, features_of, fit
from tuner.library.selection import select, spread_weights
from tuner.program.job.task import SearchTask
from tuner.schedule import is_bounded, layout_group, tiles_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured, latency_table

MAX_FITTED = 65_536
"""Shapes that a dispatcher is fitted to: all of a range of two dims of 256, and about as many of larger ones. What is
best changes from one shape to the next: where every second one was left out, others lost up to half of their time."""
FITTED = 3.0
"""What a shape takes to be predicted and fitted, over what its prediction alone takes: 1.7 to 2.6 of the sets of
tests/tuner/search/test_finalize.py, on a Xeon with AMX."""
AT_ONCE = 4096
"""Shapes that are predicted together, which bounds memory."""


class _Over(Exception):
    """The seconds for a dispatcher are over."""


def _unlimited() -> float:
    return math.inf


def choose_set(
    task: SearchTask, model: CostModel, measured: Measured, pool: Sequence[MicroKernel], limit: int
) -> list[MicroKernel]:
    """The at most ``limit`` kernels of ``pool`` that together serve the whole range best, the most useful first."""
    shapes = task.shapes()
    latency = latency_table(task, model, measured, pool, shapes)
    groups = [layout_group(task, kernel) for kernel in pool]
    return [pool[index] for index in select(latency, _shape_weights(task, shapes), limit, groups)]


def finalists(
    task: SearchTask,
    model: CostModel,
    measured: Measured,
    pool: Sequence[MicroKernel],
    first: Sequence[MicroKernel],
    extra: int,
) -> list[MicroKernel]:
    """``first``, up to ``extra`` more of ``pool`` that would be chosen without them, and as many of another layout.

    Small differences, above all those between packed layouts, are decided by timing side by side: earlier readings
    are too noisy for them.
    """
    kernels = list(first)
    layouts = {layout_group(task, kernel) for kernel in first}
    rest = [kernel for kernel in pool if kernel not in kernels]
    others = [kernel for kernel in rest if layout_group(task, kernel) not in layouts]
    for candidates in (rest, others):
        if unused := [kernel for kernel in candidates if kernel not in kernels]:
            kernels += choose_set(task, model, measured, unused, extra)
    return kernels


def objective_s(task: SearchTask, model: CostModel, measured: Measured, kernels: Sequence[MicroKernel]) -> float:
    """The weighted time of all instances with the best of these kernels at each: as measured, or else as expected."""
    latency = latency_table(task, model, measured, kernels, [instance.shape for instance in task.instances])
    return float(latency.min(axis=0) @ np.array([instance.weight for instance in task.instances]))


def make_dispatcher(
    task: SearchTask, model: CostModel, measured: Measured, kernels: Sequence[MicroKernel],
    left_s: Callable[[], float] = _unlimited,
) -> Dispatcher:  # fmt: skip
    """The tree over every shape of the range, or over fewer where every one takes longer than there is time; outside of
    the range the kernel that is best in the mean of log latencies, of those that take bounded memory there.

    ``left_s``: the seconds that are left for it, asked at every step. What it raises ends the fitting.
    """
    shapes, before_s = task.shapes(), left_s()
    latency = latency_table(task, model, measured, kernels, shapes).T
    most = _affordable(len(shapes), before_s, left_s())
    everywhere = np.log(latency).sum(axis=0)
    if any(map(is_bounded, kernels)):
        everywhere[[not is_bounded(kernel) for kernel in kernels]] = math.inf
    safe = int(everywhere.argmin())
    every = task.shapes(most)
    # A small range is predicted already.
    tree = _fitted_to_many(task, model, measured, kernels, every, left_s) if len(every) > len(shapes) else None
    tree = bounded(tree or _fitted(task, kernels, shapes, latency, left_s), symbol_bounds(task), safe)
    table, serves = [], chosen(tree, task.workload.symbols, _points(task, shapes).astype(np.int64)).tolist()
    for row, (shape, index) in enumerate(zip(shapes, serves, strict=True)):
        measured_s = measured.latency_s(kernels[index], tuple(sorted(shape.items())))
        table.append(TableRow(shape, index, float(latency[row, index]), measured_s))
    return Dispatcher(task, tuple(kernels), safe, tree, tuple(table))


def _affordable(shapes: int, before_s: float, left_s: float) -> int:
    """How many shapes there is time to fit to, at least the ``shapes`` that were predicted since there were
    ``before_s`` left."""
    if math.isinf(left_s):
        return MAX_FITTED
    each_s = FITTED * (before_s - left_s) / shapes
    return max(shapes, int(min(left_s / max(each_s, 1e-9), MAX_FITTED)))


def _fitted_to_many(
    task: SearchTask, model: CostModel, measured: Measured, kernels: Sequence[MicroKernel],
    shapes: Sequence[Mapping[str, int]], left_s: Callable[[], float],
) -> Tree | None:  # fmt: skip
    """None where it takes longer than was expected: a tree that is half grown would be worse than one over fewer
    shapes."""

    def check() -> None:
        if left_s() <= 0:
            raise _Over

    parts = list[NDArray[np.float64]]()
    try:
        for first in range(0, len(shapes), AT_ONCE):
            check()
            parts.append(latency_table(task, model, measured, kernels, shapes[first : first + AT_ONCE]))
        return _fitted(task, kernels, shapes, np.concatenate(parts, axis=1).T, check)
    except _Over:
        return None


def _fitted(
    task: SearchTask, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]],
    latency: NDArray[np.float64], check: Callable[[], object],
) -> Tree:  # fmt: skip
    """The tree over these shapes. ``latency``: [shapes, kernels]; ``check``: see ``fit``."""
    features = features_of(task.workload.symbols, tiles_of(task, kernels))
    return fit(task.workload.symbols, _points(task, shapes).astype(np.int64), latency, features, check)


def _shape_weights(task: SearchTask, shapes: Sequence[Mapping[str, int]]) -> NDArray[np.float64]:
    weights = np.array([instance.weight for instance in task.instances])
    return spread_weights(weights, _points(task, shapes), _points(task, [i.shape for i in task.instances]))


def _points(task: SearchTask, shapes: Sequence[Mapping[str, int]]) -> NDArray[np.float64]:
    """[shapes, dims]: the dynamic dims."""
    rows = [task.workload.dims(shape) for shape in shapes]
    return np.array([[row[name] for name in task.workload.symbols] for row in rows], np.float64)
