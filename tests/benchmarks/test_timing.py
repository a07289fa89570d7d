"""What is timed again, what the figures of a row become, and what the summary makes of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.compare.rows import add_timing, against_best, doubtful, open_contenders, time_at
from benchmarks.compare.summary import of_kernels
from benchmarks.harness.calls import DoesNotApply
from benchmarks.harness.results import Report
from benchmarks.harness.suite import Benchmark
from benchmarks.harness.turns import Sampler
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import native


def row(ours: float, tuned_on: bool = False, m: int = 64, **rivals: float) -> dict[str, Any]:
    result: dict[str, Any] = {
        "workload": "w", "shape": {"T": m}, "tuned_on": tuned_on, "flops": 1000,
        "max_abs_error": 0.0, "samples_s": {},
    }  # fmt: skip
    add_timing(result, {name: [s] for name, s in {"ours": ours, "peak": 1.0, **rivals}.items()}, 1e6)
    return result


def test_the_best_rival_is_a_vendor_not_our_own_ablation_nor_what_knew_the_shape() -> None:
    result = row(1.0, mm=3.0, mkl=2.0, single=0.5, dietcode=0.5, oracle=0.5, metaschedule=0.5)
    assert against_best(result) == 2.0
    assert against_best(row(1.0, single=0.5)) is None


def test_both_tenths_and_whatever_loses_is_doubtful() -> None:
    rows = [row(1.0, mm=1.0 + index / 100) for index in range(20)]
    assert doubtful(rows) == [*rows[:2], *rows[-2:]]
    losing = [row(1.0, mm=0.9) for _ in range(5)]
    assert doubtful(losing) == losing
    assert doubtful([row(1.0, single=0.1)]) == []


def test_a_row_keeps_the_samples_of_both_timings_and_shows_their_median() -> None:
    result = row(2.0, mm=1.0)
    add_timing(result, {"ours": [1.0], "peak": [3.0], "mm": [2.0]}, 1e4)
    assert (result["ours_s"], result["rivals_s"]) == (1.5, {"mm": 1.5})
    assert result["samples_s"] == {"ours": [2.0, 1.0], "peak": [1.0, 3.0], "mm": [1.0, 2.0]}
    # The peak took two seconds in the median for its 10,000 operations.
    assert result["peak_fraction"] == pytest.approx((1000 / 1.5) / (1e4 / 2.0))


def test_a_contender_that_does_not_serve_a_shape_takes_no_part() -> None:
    def metaschedule(shape: Mapping[str, int]) -> Sampler:
        if shape["T"] != 5:
            raise DoesNotApply("it was not tuned for that")
        return lambda number: 1.0

    contenders = {"ours": lambda shape: lambda number: 1.0, "metaschedule": metaschedule}
    assert time_at(contenders, {"T": 5}, 0.0) == ({"ours": [1.0] * 3, "metaschedule": [1.0] * 3}, {})
    assert time_at(contenders, {"T": 6}, 0.0) == ({"ours": [1.0] * 3}, {"metaschedule": "it was not tuned for that"})


def test_the_summary_tells_held_out_shapes_large_ones_and_regret() -> None:
    rows = [row(1.0, mm=4.0), row(1.0, tuned_on=True, m=2048, mm=1.0), row(1e-6, mm=1e-7)]
    rows[0] |= {"regret": 0.1}
    rows[2] |= {"regret": -0.01}
    tuning = [{"workload": "w", "elapsed_s": 3.0, "trials": 7, "kernels": 2}]
    summary = of_kernels(Report(rows, tuning))
    # The last one is too short to count in the means.
    assert summary["geomean_vs"] == {"mm": pytest.approx(2.0)}
    assert summary["geomean_vs_best_held_out"] == pytest.approx(4.0)
    assert summary["worst_vs_best"] == 1.0
    assert summary["regret"] == pytest.approx((1.1 * 0.99) ** 0.5 - 1)
    assert summary["regret_worst"] == 0.1
    assert (summary["trials"], summary["kernels"]) == (7, {"w": 2})


@pytest.mark.soak
def test_with_two_threads_each_contender_has_a_process_of_its_own() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    task = SearchTask(
        "dense", {"m": "T", "n": 8, "k": 8}, shape_vars=(ShapeVar("T", range(1, 9)),), target=native(), threads=2
    )
    skipped: dict[str, str] = {}
    with open_contenders(Benchmark("small", task, ()), ["mm", "bmm"], {}, skipped) as contenders:
        samples, _ = time_at(contenders, {"T": 5}, 0.0)
    assert set(samples) == {"mm"}
    assert min(samples["mm"]) > 0
    assert "bmm multiplies batches" in skipped["small/bmm"]
