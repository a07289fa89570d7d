"""Columns say the same of a search as the objects that it is searched with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import TASK
from tests.tuner.figures.searches import finished, searched
from tuner.figures.columns import columns_of
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule.space import MicroKernel
from tuner.search.observations import Measured

KERNELS = [MicroKernel("r", 1, (("a", value),)) for value in range(4)]
RESULTS = st.lists(
    st.builds(
        lambda kernel, instance, latency, phase, round_: MeasureResult(
            kernel,
            instance,
            latency,
            error_kind=None if latency else ErrorKind.CRASH,
            phase=phase,
            round=round_,
        ),
        st.sampled_from(KERNELS),
        st.sampled_from(TASK.instances),
        st.none() | st.floats(1e-9, 1.0) | st.sampled_from([1.0, 2.0]),
        st.sampled_from(Phase),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(RESULTS)
def test_medians_and_the_best_are_those_of_the_search(results: list[MeasureResult]) -> None:
    columns, measured = columns_of(TASK.instances, results), Measured(results)
    table = columns.table(range(len(columns.kernels)))
    for row, kernel in enumerate(columns.kernels):
        assert columns.sound[row] == (kernel not in measured.failed)
        for place, instance in enumerate(TASK.instances):
            expected = measured.latency_s(kernel, instance.values)
            assert table[row, place] == pytest.approx(np.nan if expected is None else expected, nan_ok=True)
    for place, instance in enumerate(TASK.instances):
        best_s = measured.best_s(instance)
        assert columns.best_s[place] == pytest.approx(np.nan if best_s is None else best_s, nan_ok=True)
        assert (columns.fastest[0][place] >= 0) == (best_s is not None)


@given(RESULTS)
def test_the_default_is_the_best_of_what_was_measured_first(results: list[MeasureResult]) -> None:
    columns, measured = columns_of(TASK.instances, results), Measured(results)
    theory = {(r.kernel, r.instance) for r in results if r.ok and r.is_theory}
    for place, instance in enumerate(TASK.instances):
        times = [
            measured.latency_s(kernel, instance.values)
            for kernel, at in theory
            if at == instance and kernel not in measured.failed
        ]
        expected = min((time for time in times if time is not None), default=np.nan)
        assert columns.default[1][place] == pytest.approx(expected, nan_ok=True)


def test_instances_that_the_task_does_not_name_come_last() -> None:
    other = WorkloadInstance.of({"T": 99})
    columns = columns_of(TASK.instances, [MeasureResult(KERNELS[0], other, 2e-6)])
    assert columns.instances == (*TASK.instances, other)
    assert columns.best_s[-1] == 2e-6
    assert np.isnan(columns.best_s[:-1]).all()


def test_a_kernel_that_was_never_tried_has_no_times() -> None:
    columns = columns_of(TASK.instances, searched())
    assert columns.index_of([KERNELS[0], columns.kernels[1]]) == [-1, 1]
    table = columns.table([-1, 1])
    assert np.isnan(table[0]).all()
    assert np.isfinite(table[1]).any()


def test_speeds_are_relative_to_the_best_at_the_same_instances() -> None:
    one, two = TASK.instances[:2]
    times = {(0, one): 1.0, (0, two): 4.0, (1, one): 2.0, (1, two): 2.0, (2, one): 1.0}
    results = [MeasureResult(KERNELS[number], at, time) for (number, at), time in times.items()]
    failed = replace(results[-1], latency_s=None, error_kind=ErrorKind.WRONG, kernel=KERNELS[3])
    speed = columns_of(TASK.instances, [*results, failed]).relative()
    assert speed.tolist()[:3] == [0.75, 0.75, 1.0]
    assert np.isnan(speed[3])


def test_columns_are_made_once() -> None:
    view = finished()
    assert view.columns is view.columns
