"""Several runs in one table."""

from __future__ import annotations

from typing import Any

from benchmarks.summary import report


def document(seed: int, mean: float, worst: float) -> dict[str, Any]:
    def row(size: int, ratio: float, tuned_on: bool) -> dict[str, Any]:
        return {
            "workload": "qkv", "shape": {"T": size}, "tuned_on": tuned_on, "ours_s": 1.0,
            "rivals_s": {"mm": ratio}, "peak_fraction": 0.5,
        }  # fmt: skip

    return {
        "rows": [row(1, worst, False), row(128, 1.2, True)],
        "summary": {
            "geomean_vs": {"mm": mean}, "regret": 0.02, "regret_worst": None, "trials": 100, "kernels": {"qkv": 8},
        },
        "protocol": {"seed": seed, "suite": "dense"},
    }  # fmt: skip


def test_figures_are_medians_over_the_runs_with_the_least_and_the_largest() -> None:
    text = report([document(0, 1.1, 0.9), document(1, 1.3, 1.0), document(2, 1.2, 0.7)])
    assert text.startswith("dense: 3 runs, seeds 0, 1, 2")
    assert "| geomean_vs.mm | 1.200 | 1.100 | 1.300 |" in text
    assert "| regret | 2.0 % | 2.0 % | 2.0 % |" in text
    assert "| trials | 100 | 100 | 100 |" in text
    assert "| kernels.qkv | 8 | 8 | 8 |" in text
    assert "regret_worst" not in text, "no run has it"


def test_the_worst_shapes_come_first_by_the_median_of_their_ratios() -> None:
    lines = report([document(0, 1.1, 0.9), document(1, 1.3, 1.0), document(2, 1.2, 0.7)], worst=2).splitlines()
    assert lines[-2:] == ["| qkv T=1 | 0.900 | 50 | yes |", "| qkv T=128 | 1.200 | 50 | no |"]
