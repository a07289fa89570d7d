"""The benchmark of operators: its cases, its document on a short search, and what the summary makes of rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.document import Report
from benchmarks.operator_cases import DEFAULT, TIMED, TUNED, benchmarks_of
from benchmarks.operators import add_bandwidth, summary_of
from tuner.errors import InvalidInput
from tuner.program.target import native

ROOT = Path(__file__).parents[2]


def row(workload: str, size: int, ours_s: float, torch_s: float, tuned_on: bool = False) -> dict[str, Any]:
    return {
        "workload": workload, "shape": {"T": size}, "tuned_on": tuned_on, "ours_s": ours_s, "stream_s": 0.8e-4,
        "rivals_s": {"torch": torch_s}, "bytes": size, "max_abs_error": 1e-6,
    }  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT)
def test_rows_are_short_and_long_and_half_of_the_timed_shapes_are_held_out(name: str) -> None:
    benchmarks = benchmarks_of(name, native(), 1)
    sizes = [[str(dim) for dim in benchmark.task.workload.inputs[0].dims] for benchmark in benchmarks]
    assert sizes == [["m", "768"], ["m", "4096"]]
    for benchmark in benchmarks:
        assert len(benchmark.task.instances) == len(TUNED) == 8
        assert sum(map(benchmark.tuned_on, benchmark.test)) == len(TIMED) // 2


def test_attention_is_short_and_long_for_few_and_many_heads_causal_and_not() -> None:
    names = [benchmark.name for benchmark in benchmarks_of("attention", native(), 1)]
    few, many = "attention [1, 12, 4*T, 4*T, 64", "attention [16, 12, T, T, 64"
    assert names == [f"{few}]", f"{few}, causal]", f"{many}]", f"{many}, causal]"]


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match="'gelu' is neither an operator nor a chain"):
        benchmarks_of("gelu", native(), 1)


def test_bandwidth_is_given_where_operands_exceed_the_cache() -> None:
    rows = [row("w", 100, 1e-4, 1e-4), row("w", 1000, 1e-4, 1e-4)]
    add_bandwidth(rows, 500)
    assert [each["bandwidth_fraction"] for each in rows] == [None, pytest.approx(0.8)]


def test_the_summary_has_means_the_worst_shape_and_the_bandwidth() -> None:
    rows = [row("a", 1, 1e-6, 1e-6), row("a", 1000, 1e-4, 4e-4, tuned_on=True), row("b", 2000, 1e-4, 1e-4)]
    add_bandwidth(rows, 500)
    tuning = [{"workload": "a", "elapsed_s": 3.0, "trials": 7, "kernels": 2}]
    summary = summary_of(Report(rows, tuning))
    assert summary["geomean_vs"]["torch"] == pytest.approx(4 ** (1 / 3))
    assert summary["geomean_vs_held_out"]["torch"] == pytest.approx(1.0)
    assert summary["geomean_vs_long"]["torch"] == pytest.approx(2.0)
    assert summary["geomean_vs_by_workload"] == {"a": pytest.approx(2.0), "b": pytest.approx(1.0)}
    assert (summary["worst_vs"], summary["worst_at"]) == ({"torch": 1.0}, {"workload": "a", "shape": {"T": 1}})
    assert (summary["bandwidth_fraction"], summary["bandwidth_fraction_worst"]) == (pytest.approx(0.8),) * 2
    assert (summary["trials"], summary["kernels"]) == (7, {"a": 2})


def test_the_document_has_rows_summary_and_protocol(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.operators", "--op", "bilinear", "--trials", "2", "--seconds", "30"]
    command += ["--shapes", "3,5"]
    done = subprocess.run(
        [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [(row["shape"]["T"], row["tuned_on"]) for row in document["rows"]] == [(3, False), (5, True)]
    for each in document["rows"]:
        assert set(each) >= {"workload", "shape", "tuned_on", "ours_s", "rivals_s", "flops", "bytes", "stream_s"}
        assert set(each["rivals_s"]) == {"torch"}
        assert each["max_abs_error"] < 1e-3
    assert document["summary"]["geomean_vs"]["torch"] > 0
    assert document["protocol"]["skipped"] == {}
    assert json.loads(done.stdout) == document["summary"]


def test_an_unknown_operator_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.operators", "--op", "gelu", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("op: 'gelu' is neither")
