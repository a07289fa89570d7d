"""What the rows of the benchmark of operators come to, and how its document is gone on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.rows import add_timing
from benchmarks.compare.summary import interval_of, medians, not_applicable, of_operators, over_seeds
from benchmarks.harness.results import Document, Report
from docs.tools.performance import with_interval
from tuner.errors import InvalidInput

PROTOCOL = {"threads": 1, "against": "torch"}


def row(workload: str, size: int, ours_s: float, torch_s: float, seed: int = 0, **others: Any) -> dict[str, Any]:
    rivals = others.pop("rivals_s", {"torch": torch_s})
    result = {
        "workload": workload, "operator": workload[0], "shape": {"T": size}, "tuned_on": False, "flops": 1,
        "bytes": size, "exceeds_l2": size > 500, "max_abs_error": 1e-6, "seed": seed, "not_timed": {},
        "samples_s": {}, **others,
    }  # fmt: skip
    seconds = {"ours": ours_s, "peak": 1.0, "stream": 0.8e-4, **rivals}
    add_timing(result, {name: [each] for name, each in seconds.items()}, 1.0)
    return result


def tuning(workload: str, seed: int = 0) -> dict[str, Any]:
    return {"workload": workload, "elapsed_s": 3.0, "trials": 7, "kernels": 2, "seed": seed}


def test_the_best_way_of_pytorch_is_the_fastest_that_was_timed() -> None:
    rivals = {"torch": 3e-6, "onednn": 2e-6, "compile": 4e-6, "dlight": 1e-6}
    assert row("a", 1, 1e-6, 0, rivals_s=rivals)["vs"] == pytest.approx(
        {"torch": 3.0, "onednn": 2.0, "compile": 4.0, "dlight": 1.0, "best_pytorch": 2.0}
    )
    assert row("a", 1, 1e-6, 0, rivals_s={"separate": 2e-6})["vs"] == {"separate": 2.0}


def test_bandwidth_is_given_where_operands_exceed_the_cache() -> None:
    assert row("w", 100, 1e-4, 1e-4)["bandwidth_fraction"] is None
    assert row("w", 1000, 1e-4, 1e-4)["bandwidth_fraction"] == pytest.approx(0.8)


def test_the_summary_has_means_the_worst_shape_and_the_bandwidth() -> None:
    rows = [row("a1", 1, 1e-6, 1e-6), row("a2", 1000, 1e-4, 4e-4, tuned_on=True), row("b", 2000, 1e-4, 0.5e-4)]
    summary = of_operators(Report(rows, [tuning("a1")]))
    assert summary["geomean_vs"]["torch"] == pytest.approx(2 ** (1 / 3))
    assert summary["geomean_vs_held_out"]["torch"] == pytest.approx(0.5**0.5)
    assert summary["by_operator"]["a"]["torch"] == {"geomean": 2.0, "least": 1.0, "lost": 0.0, "shapes": 2}
    assert summary["by_operator"]["b"]["torch"]["lost"] == 1.0
    assert summary["geomean_over_operators"]["torch"] == pytest.approx(1.0)
    assert list(summary["by_workload"]) == ["a1", "a2", "b"]
    assert (summary["worst_vs"]["torch"], summary["worst_at"]["torch"]) == (0.5, {"workload": "b", "shape": "T=2000"})
    assert (summary["bandwidth_fraction"], summary["bandwidth_fraction_worst"]) == (pytest.approx(0.8),) * 2
    assert (summary["trials"], summary["kernels"]) == (7, {"a1": 2})


def test_several_seeds_give_medians_and_each() -> None:
    rows = [row("a", 1, 1e-6, ratio * 1e-6, seed) for seed, ratio in enumerate((1.0, 4.0, 2.0))]
    document = over_seeds(Report(rows, [tuning("a", seed) for seed in range(3)]))
    summary, each = document["summary"], document["by_seed"]
    assert summary["geomean_vs"]["torch"] == pytest.approx(2.0)
    assert [each[seed]["worst_vs"]["torch"] for seed in "012"] == pytest.approx([1.0, 4.0, 2.0])
    assert summary["trials"] == 7


def test_medians_are_of_numbers_by_their_place() -> None:
    one, two = {"a": {"b": 1.0, "c": 3.0}, "d": None, "e": "x"}, {"a": {"b": 2.0}, "d": 4.0, "e": "y"}
    assert medians([one, two]) == {"a": {"b": 1.5, "c": 3.0}, "d": 4.0}


def test_what_does_not_apply_is_named_with_the_reason_and_its_shapes() -> None:
    slow = {"dlight": "slow"}
    rows = [row("a", 1, 1, 1), row("a", 2, 1, 1, not_timed=slow), row("b", 2, 1, 1, not_timed=slow)]
    report = Report(rows, skipped={"a/b [T/2]/mkl": "it multiplies matrices"})
    assert not_applicable(report) == {
        "mkl": {"a/b [T/2]": "it multiplies matrices"}, "dlight": {"a": "at T=2: slow", "b": "at T=2: slow"},
    }  # fmt: skip


def test_a_document_is_written_after_each_search_and_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    document = Document(path, PROTOCOL, over_seeds, resume=True)
    document.add("a", 0, Report([row("a", 1, 1e-6, 2e-6)], [tuning("a")], skipped={"a/mkl": "no product"}))
    document.fail("b", 0, ValueError("wrong by 3"))
    assert json.loads(path.read_text())["failed"] == {"b, seed 0": "ValueError: wrong by 3"}
    again = Document(path, PROTOCOL, over_seeds, resume=True)
    assert (again.has("a", 0), again.has("a", 1), again.has("b", 0)) == (True, False, False)
    again.add("b", 0, Report([row("b", 1, 1e-6, 8e-6)], [tuning("b")]))
    data = json.loads(path.read_text())
    assert data["summary"]["geomean_vs"]["torch"] == pytest.approx(4.0)
    assert (data["not_applicable"], data["failed"]) == ({"mkl": {"a": "no product"}}, {})
    assert not Document(path, PROTOCOL, over_seeds).has("a", 0)


def test_what_was_measured_in_another_way_is_not_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Document(path, PROTOCOL, over_seeds, resume=True).add("a", 0, Report([row("a", 1, 1e-6, 2e-6)], [tuning("a")]))
    with pytest.raises(InvalidInput, match=r"has threads 1, this run 2 \(.*another --json, or no --resume\)"):
        Document(path, {**PROTOCOL, "threads": 2}, over_seeds, resume=True)


def test_a_document_says_where_its_figures_come_from(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Document(path, PROTOCOL, over_seeds).add("a", 0, Report([row("a", 1, 1e-6, 2e-6)], [tuning("a")]))
    protocol = json.loads(path.read_text())["protocol"]
    assert {"cpu", "cores", "commit", "command", "date", "versions", "load_average"} <= set(protocol)
    assert len(protocol["load_average_at_the_end"]) == 3


def test_the_interval_of_a_mean_comes_from_the_samples_of_its_rows() -> None:
    quiet, noisy = row("a", 1, 1.0, 2.0), row("a", 1, 1.0, 2.0)
    assert interval_of([quiet]) == pytest.approx((2.0, 2.0))
    assert interval_of([quiet], "dlight") is None
    for seconds in (1.0, 4.0, 2.0, 8.0):
        add_timing(noisy, {"ours": [1.0], "peak": [1.0], "stream": [1.0], "torch": [seconds]}, 1.0)
    bounds = interval_of([noisy])
    assert bounds is not None
    assert "noisy" in with_interval(2.0, bounds)
    assert with_interval(1.02, (1.0, 1.05)) == "1.02x (1.00 to 1.05)"
