"""What a chain's order costs: the kernels that are compared, and what the figures come to."""

from __future__ import annotations

import pytest

from benchmarks.orders import AXIS, ORDERS, PROGRAMS, benchmark, candidates, figures, summary
from tests.fakes import TASK


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_orders_have_as_many_candidates(program: str) -> None:
    case = benchmark(program, 64, (1, 8), TASK.known_target, threads=1)
    assert [shape["T"] for shape in case.test] == [1, 8]
    kernels = candidates(case.task, {"T": 8}, top=3, seed=0)
    assert [kernel[AXIS] for kernel in kernels] == [order for order in ORDERS for _ in range(3)]
    assert len(set(kernels)) == len(kernels)
    assert kernels == candidates(case.task, {"T": 8}, top=3, seed=0)


def test_what_the_librarys_call_takes_counts_for_its_order() -> None:
    case = benchmark("mlp", 64, (8,), TASK.known_target, threads=1)
    fused, unfused = candidates(case.task, {"T": 8}, top=1, seed=0)
    lost = figures({fused: 2.0, unfused: 1.5}, fused, (1.0, 1.25))
    assert (lost["fused_s"], lost["unfused_s"], lost["dispatched_s"], lost["chosen"]) == (1.0, 1.5, 1.0, "fused")
    assert (lost["loss"], lost["order"], lost["noise"]) == (0.0, 0.0, 0.25)
    lost = figures({fused: 2.0, unfused: 1.5}, fused, (3.0, 3.0))
    assert (lost["fused_s"], lost["loss"]) == (2.0, 1.0)
    assert lost["order"] == pytest.approx(2.0 / 1.5 - 1)
    assert lost["finalists"] == {str(fused): 2.0, str(unfused): 1.5}


def test_the_summary_has_means_the_worst_and_which_order_wins() -> None:
    rows = [
        {"loss": 0.0, "order": 0.0, "noise": 0.01, "fused_s": 1.0, "unfused_s": 1.05},
        {"loss": 0.21, "order": 0.1, "noise": 0.0, "fused_s": 1.1, "unfused_s": 1.0},
        {"loss": 0.0, "order": 0.02, "noise": 0.0, "fused_s": 1.02, "unfused_s": 1.0},
    ]
    result = summary(rows)
    assert result["loss"] == pytest.approx(1.21 ** (1 / 3) - 1)
    assert (result["loss_worst"], result["order_worst"], result["noise_worst"]) == (0.21, 0.1, 0.01)
    assert (result["fused_wins"], result["unfused_wins"], result["order_over_3_percent"]) == (1, 1, 1)
