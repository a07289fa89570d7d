"""What is known of latencies: medians of attempts, and the model corrected by a kernel's own measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import TASK
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.rules.space import MicroKernel
from tuner.search.cost_model import Prediction
from tuner.search.observations import Measured, latency_table, log_points

A, B, C = (MicroKernel("r", 1, (("a", value),)) for value in (1, 2, 3))
SHORT, LONG = WorkloadInstance.of({"T": 1}), WorkloadInstance.of({"T": 128})


class Linear:
    """A model that expects a nanosecond for each row, of every kernel."""

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
    assert measured.shapes(C) == [SHORT.values, LONG.values]


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
