"""Figures of searches that are empty, huge, all failed, or named by somebody with bad intentions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import TASK
from tests.shares import diagonal
from tests.tuner import strategies
from tests.tuner.figures.searches import TASKS, finished, library, numpy_times, sampled, searched, told
from tuner.figures import FIGURES, SearchView, compare, document, figure, kernel_times
from tuner.figures.thinning import MAX_POINTS
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.summary import SearchSummary

FAILED = MeasureResult(sampled(TASK, 1)[0], TASK.instances[0], error_kind=ErrorKind.CRASH)
FEW = searched(kernels=2)

ODD: dict[str, Callable[[], SearchView]] = {
    "empty": lambda: SearchView(TASK),
    "one trial": lambda: SearchView(TASK, [MeasureResult(sampled(TASK, 1)[0], TASK.instances[0], 1e-6)]),
    "all failed": lambda: SearchView(TASK, [FAILED, replace(FAILED, attempt=1, round=3)]),
    "a library without trials": lambda: SearchView(TASK, dispatcher=library(TASK, sampled(TASK, 2))),
    "a library without a table": lambda: SearchView(
        TASK, FEW, told(TASK, FEW), replace(library(TASK, sampled(TASK, 2)), table=())
    ),
    "baselines alone": lambda: SearchView(TASK, baselines=numpy_times(TASK)),
    "decades": lambda: SearchView(TASK, [replace(r, latency_s=10.0 ** -(n % 9)) for n, r in enumerate(FEW) if r.ok]),
    "no anchors, no predictions": lambda: SearchView(TASK, [replace(r, anchor_s=None, predicted_s=None) for r in FEW]),
    "an instance of old": lambda: SearchView(TASK, [MeasureResult(FEW[0].kernel, WorkloadInstance.of({"T": 3}), 1e-6)]),
    "an instance in symbols": lambda: SearchView(
        TASK, [replace(FEW[0], instance=WorkloadInstance.of(TASK.workload.dims({"T": 3})))]
    ),
    "some instances in symbols": lambda: SearchView(
        TASK, [*FEW, replace(FEW[0], instance=WorkloadInstance.of(TASK.workload.dims({"T": 3})))]
    ),
    **{name: lambda task=task: finished(task, 12) for name, task in TASKS.items()},  # type: ignore[misc]
}


@pytest.mark.parametrize(("odd", "name"), diagonal(ODD, FIGURES, every=3))
def test_there_is_a_figure_whatever_there_is_to_show(odd: str, name: str) -> None:
    result = figure(name, ODD[odd]())
    drawn = result.data or result.layout.annotations
    assert drawn, "an empty figure says what is missing"
    json.dumps(document(result), allow_nan=False)
    for axis in (*result.select_xaxes(), *result.select_yaxes()):
        if axis.visible is not False and axis.title.text:
            assert axis.title.text.endswith(")"), f"{axis.title.text} has no unit"
    if result.data:
        assert any(axis.title.text for axis in result.select_xaxes())


@pytest.mark.parametrize("odd", ODD)
def test_comparing_and_looking_at_one_kernel_work_as_well(odd: str) -> None:
    view = ODD[odd]()
    for name in ("best_over_time", "latency_by_shape"):
        both = compare({"this": view, "that": finished(kernels=6)}, name)
        assert both.data or both.layout.annotations
        alone = compare({"this": view, "that": view}, name)
        assert alone.data or alone.layout.annotations
    for kernel in {result.kernel for result in view.results}:
        one = kernel_times(view, kernel.id)
        assert one.data or one.layout.annotations


def test_an_empty_comparison_says_so() -> None:
    for name in ("best_over_time", "latency_by_shape"):
        assert compare({}, name).layout.annotations


@given(strategies.tasks(), st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_results_of_any_task_can_be_drawn(task: SearchTask, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(strategies.results(), max_size=12))
    own = [replace(r, instance=task.instances[n % len(task.instances)]) for n, r in enumerate(drawn)]
    view = SearchView(task, own)
    for name in FIGURES:
        json.dumps(document(figure(name, view)), allow_nan=False)


@pytest.mark.soak
def test_a_hundred_thousand_results_make_small_figures_soon() -> None:
    view = huge(100_000)
    view.columns.medians  # noqa: B018 - what all figures share is made once
    for name in FIGURES:
        started = time.process_time()
        text = figure(name, view).to_json()
        assert time.process_time() - started < 2.0, name
        assert len(text) < 1_000_000, name
        for trace in figure(name, view).data:
            points = [trace[part] for part in ("x", "y", "customdata") if part in trace and trace[part] is not None]
            assert all(len(part) <= MAX_POINTS for part in points)


def huge(count: int) -> SearchView:
    """A search of so many trials, all different."""
    rng, pool = np.random.default_rng(0), sampled(TASK, 3000)
    latency, error = rng.lognormal(-11, 1, count), rng.lognormal(0, 0.3, count)
    results = [
        MeasureResult(
            _copied(pool[n % len(pool)]),
            TASK.instances[n // len(pool) % len(TASK.instances)],
            None if n % 29 == 0 else float(latency[n]),
            error_kind=ErrorKind.CRASH if n % 29 == 0 else None,
            predicted_s=float(latency[n] * error[n]),
            round=n // 50,
        )
        for n in range(count)
    ]
    progress = [
        SearchSummary("search", trials=3 * n, elapsed_s=n, objective_s=1 / (1 + n), default_objective_s=1.0)
        for n in range(count // 3)
    ]
    return SearchView(TASK, results, progress, library(TASK, pool[:4]), Baselines())


def _copied(kernel: MicroKernel) -> MicroKernel:
    """As a database gives it: equal, but not the same."""
    return MicroKernel(kernel.rule, kernel.rule_version, (*kernel.values[1:], kernel.values[0]))
