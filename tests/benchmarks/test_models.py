"""The benchmark of whole models, on a tiny one: extracted, tuned through a service, compiled, timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.model_zoo import MODELS, build
from benchmarks.models import lengths_of, summary_of, tasks_of

ROOT = Path(__file__).resolve().parents[2]


def test_weights_are_the_same_in_every_process() -> None:
    one, other = build("bert-tiny"), build("bert-tiny")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("model", ["bert-tiny", "resnet-tiny"])
def test_a_model_is_taken_apart_into_workloads(model: str) -> None:
    tasks = tasks_of(model, 1)
    assert sum(task.count for task in tasks) >= 8
    names = {var.name for task in tasks for var in task.shape_vars}
    assert names <= {"batch", "length"}
    assert "length" in names


@pytest.mark.parametrize("model", sorted(MODELS))
def test_lengths_hold_the_ends_of_the_range(model: str) -> None:
    lengths = lengths_of(model, 20)
    assert (lengths[0], lengths[-1]) == (MODELS[model].lengths[0], MODELS[model].lengths[-1])
    assert len(lengths) == min(20, len(MODELS[model].lengths))


def test_the_summary_tells_how_many_times_faster_ours_is() -> None:
    rows = [
        {"workload": "a", "tuned_on": tuned, "ours_s": 1.0, "max_abs_error": 0.0, "rivals_s": rivals}
        for tuned, rivals in ((True, {"eager": 1.0, "compile": 2.0}), (False, {"eager": 4.0, "compile": 2.0}))
    ]
    summary = summary_of(rows)
    assert summary["geomean_vs"] == pytest.approx({"eager": 2.0, "compile": 2.0})
    assert summary["geomean_vs_best"] == pytest.approx(np.sqrt(2.0))
    assert summary["geomean_vs_best_held_out"] == pytest.approx(2.0)


@pytest.mark.soak
def test_a_tiny_model_is_tuned_through_a_service_and_timed(tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    line = [sys.executable, "-m", "benchmarks.models", "--model", "bert-tiny", "--lengths", "3", "--json", str(out)]
    environment = {**os.environ, "SHAPEWRIGHT_DATA_DIR": str(tmp_path)}
    subprocess.run([*line, "--minutes", "0.5", "--trials", "32"], check=True, timeout=1800, cwd=ROOT, env=environment)
    document = json.loads(out.read_text())
    assert [row["shape"]["length"] for row in document["rows"]] == [32, 16, 1] * 2
    assert all(row["max_abs_error"] <= row["tolerance"] for row in document["rows"])
    assert document["summary"]["geomean_vs"].keys() == {"eager", "compile"}
    assert document["protocol"]["contenders"]["ours"]["report"]["replaced"]
