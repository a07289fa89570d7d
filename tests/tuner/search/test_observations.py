"""What is known of latencies: medians of attempts, and the model corrected by a kernel's own measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import TASK
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import Prediction
from tuner.search.observations import (
    Measured,
    latency_table,
    log_points,
    median_latencies,
    normalized,
    reference_anchor_s,
)

A, B, C = (MicroKernel("r", 1, (("a", value),)) for value in (1, 2, 3))
SHORT, LONG = WorkloadInstance.of({"T": 1}), WorkloadInstance.of({"T": 128})


class Linear:
    """A model that expects a nanosecond for each row, of every kernel."""

    @property
    def theory(self) -> Linear:
        return self

    @property
    def interval_coverage(self) -> float | None:
        return None

    def at_speed(self, anchor_s: float) -> None:
        pass

    def update(self, results: Sequence[MeasureResult]) -> None:
        raise AssertionError("nothing to learn here")

    def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
        latency = np.array([[1e-9 * shape["T"] for shape in shapes] for _ in kernels])
        return Prediction(latency, np.zeros_like(latency))


def test_the_finalists_second_timing_counts_alone() -> None:
    first = MeasureResult(A, SHORT, 1e-6)
    measured = Measured([first, replace(first, latency_s=3e-6, phase=Phase.FINAL, attempt=1)])
    assert measured.latency_s(A, SHORT.values) == 3e-6


def test_attempts_count_as_their_median() -> None:
    times = (3e-6, 1e-6, 2e-6)
    measured = Measured(MeasureResult(A, SHORT, time, attempt=index) for index, time in enumerate(times))
    assert measured.latency_s(A, SHORT.values) == 2e-6
    assert measured.latency_s(A, LONG.values) is None
    assert measured.latency_s(B, SHORT.values) is None
    assert (measured.trials, measured.failures) == (3, 0)


def test_a_kernel_that_failed_once_is_out() -> None:
    failure = MeasureResult(A, LONG, error_kind=ErrorKind.WRONG)
    measured = Measured([MeasureResult(A, SHORT, 1e-6), MeasureResult(B, SHORT, 2e-6), failure])
    assert measured.kernels == [B]
    assert measured.failed == {A}
    assert measured.best_s(SHORT) == 2e-6
    assert measured.best_s(LONG) is None
    assert (measured.trials, measured.failures) == (3, 1)


def test_kernels_stand_in_the_order_of_their_first_results() -> None:
    measured = Measured([MeasureResult(kernel, SHORT, 1e-6) for kernel in (C, A, B, A)])
    measured.add([MeasureResult(C, LONG, 1e-6)])
    assert measured.kernels == [C, A, B]
    assert list(measured.latencies_of(C)) == [SHORT.values, LONG.values]


def test_an_unmeasured_kernel_is_what_the_model_says() -> None:
    shapes = [{"T": t} for t in (1, 64, 128)]
    assert latency_table(TASK, Linear(), Measured(), [A], shapes)[0] == pytest.approx([1e-9, 64e-9, 128e-9])


def test_a_measured_kernel_is_as_measured_and_its_error_reaches_between() -> None:
    measured = Measured([MeasureResult(A, SHORT, 2e-9), MeasureResult(A, LONG, 0.5 * 128e-9)])
    shapes = [{"T": t} for t in (1, 2, 11, 100, 128)]
    table = latency_table(TASK, Linear(), measured, [A, B], shapes)
    ratio = table[0] / table[1]
    assert ratio[0] == pytest.approx(2.0, rel=0.02)
    assert ratio[-1] == pytest.approx(0.5, rel=0.02)
    assert (np.diff(ratio) < 0).all()
    assert 0.5 < ratio[2] < 2.0
    assert table[1] == pytest.approx([1e-9 * shape["T"] for shape in shapes])


def test_one_measurement_moves_the_kernel_everywhere() -> None:
    measured = Measured([MeasureResult(A, SHORT, 3e-9)])
    table = latency_table(TASK, Linear(), measured, [A], [{"T": 1}, {"T": 128}])
    assert table[0] == pytest.approx([3e-9, 3 * 128e-9])


def test_points_are_logarithms_of_the_dynamic_dims() -> None:
    t, s = ShapeVar("T", range(0, 9)), ShapeVar("S", range(0, 9))
    task = SearchTask("matmul", {"m": t, "n": 2 * s, "k": 8}, (t, s))
    assert log_points(task, [{"T": 0, "S": 3}]) == pytest.approx(np.log([[1, 7]]))
    fixed = SearchTask("matmul", {"m": 8, "n": 8, "k": 8})
    assert log_points(fixed, [{}, {}]).shape == (2, 0)
    kernel = replace(A)
    result = MeasureResult(kernel, WorkloadInstance.of({}), 5e-9)

    class Constant(Linear):
        def predict(self, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]) -> Prediction:
            return Prediction(np.full((len(kernels), len(shapes)), 1e-9), np.zeros((len(kernels), len(shapes))))

    assert latency_table(fixed, Constant(), Measured([result]), [kernel], [{}])[0] == pytest.approx([5e-9])


def test_columns_of_results_have_the_medians_of_measured() -> None:
    nan = float("nan")
    pairs, latency = median_latencies(
        np.array([4, 4, 4, 1, 1, 7, 4, 2]),
        np.array([5.0, 1.0, 2.0, 3.0, 9.0, nan, nan, 8.0]),
        np.array([False, False, False, False, True, False, False, False]),
    )
    assert pairs.tolist() == [1, 2, 4]
    assert latency.tolist() == [9.0, 8.0, 2.0]


def test_results_are_taken_to_the_reference_speed_as_far_as_speeds_are_believed() -> None:
    results = [
        MeasureResult(A, LONG, error_kind=ErrorKind.CRASH),
        *(MeasureResult(A, SHORT, 6e-6, anchor_s=anchor_s) for anchor_s in (2e-6, 3e-6, 1e-6, 60e-6, None)),
    ]
    assert reference_anchor_s(results) == 2e-6
    assert [result.latency_s for result in normalized(results)] == [None, 6e-6, 4e-6, 12e-6, 3e-6, 6e-6]
    unknown = replace(results[1], anchor_s=None)
    assert normalized([unknown, results[0]]) == [unknown, results[0]]
