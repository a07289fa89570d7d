"""The benchmark of whole models, on a tiny one: extracted, tuned through a service, compiled, timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.models import compared, gain_of, lengths_of, summary_of, tasks_of
from benchmarks.nets.contenders import EAGER, Contender
from benchmarks.nets.zoo import MODELS
from benchmarks.rivals.onnx_files import EXPORTED
from tests.shares import chosen
from tuner.program.job.budget_plan import MIN_TRIALS
from tuner.search.summary import JobSummary, SearchSummary

ROOT = Path(__file__).resolve().parents[2]


def test_weights_are_the_same_in_every_process() -> None:
    one, other = MODELS["bert-tiny"].build(), MODELS["bert-tiny"].build()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("model", chosen(["resnet-tiny", "step-tiny"], ["bert-tiny", "resnet-tiny", "step-tiny"]))
def test_a_model_is_taken_apart_into_workloads(model: str) -> None:
    tasks = tasks_of(model, 1)
    assert sum(task.count for task in tasks) >= 7
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
        {"workload": "a", "tuned_on": tuned, "max_abs_error": 0.0, **compared({"ours": 1.0, **rivals})}
        for tuned, rivals in ((True, {"eager": 1.0, "compile": 2.0}), (False, {"eager": 4.0, "compile": 2.0}))
    ]
    summary = summary_of(rows)
    assert summary["geomean_vs"] == pytest.approx({"eager": 2.0, "compile": 2.0})
    assert summary["geomean_vs_best"] == pytest.approx(np.sqrt(2.0))
    assert summary["geomean_vs_best_held_out"] == pytest.approx(2.0)


@pytest.mark.soak
def test_models_that_share_layers_have_workloads_in_common() -> None:
    shallow, deep = tasks_of("bert-tiny", 1), tasks_of("bert-tiny-deep", 1)
    assert {task.workload.key for task in shallow} == {task.workload.key for task in deep}
    assert sum(task.count for task in deep) > sum(task.count for task in shallow)


@pytest.mark.parametrize(
    ("model", "batch", "tolerance"), [("bert-tiny", 4, 1e-4), ("step-tiny", 1, 0.03)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_rivals_that_read_onnx_compute_the_model_at_sizes_that_they_were_not_exported_at(
    name: str, model: str, batch: int, tolerance: float, tmp_path: Path
) -> None:
    for package in (name, "onnxscript"):
        pytest.importorskip(package)
    rival, eager = (Contender(each, model, 1, tmp_path) for each in (name, EAGER))
    for of, length in ((batch, 32), (1, 7), (1, 1)):
        found, right = rival.prepare(of, length), eager.prepare(of, length)
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert rival.sample(2) > 0


def test_what_a_job_has_gained_counts_workloads_as_often_as_they_occur() -> None:
    found = [SearchSummary(default_objective_s=4.0, objective_s=ours_s) for ours_s in (2.0, 4.0)]
    summary = JobSummary(dict(enumerate(found))).to_json(2)
    job = {"summary": summary, "trials": 24, "started_at": "2026-01-01T00:00:02Z", "ended_at": "2026-01-01T00:00:14Z"}
    assert gain_of(job, [3, 1]) == {"trials": 24, "seconds": 12.0, "gain": 16.0 / 10.0}
    # The default of one was not timed.
    assert gain_of(job, [3, 1, 1]) is None


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_tiny_model_is_tuned_through_a_service_and_timed(tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    line = [sys.executable, "-m", "benchmarks.models", "--model", "bert-tiny", "--lengths", "3", "--json", str(out)]
    environment = {**os.environ, "SHAPEWRIGHT_DATA_DIR": str(tmp_path)}
    # Trials end the job: on a loaded machine half a minute gives eight workloads none. As many as these let each
    # workload be searched.
    trials = str(8 * MIN_TRIALS)
    subprocess.run([*line, "--minutes", "8", "--trials", trials], check=True, timeout=1800, cwd=ROOT, env=environment)
    document = json.loads(out.read_text())
    assert [row["shape"]["length"] for row in document["rows"]] == [32, 17, 1] * 2
    assert all(row["max_abs_error"] <= row["tolerance"] for row in document["rows"])
    rivals = {name for name in EXPORTED if find_spec(name) and find_spec("onnxscript")}
    assert document["summary"]["geomean_vs"].keys() == {"eager", "compile", *rivals}
    assert document["protocol"]["skipped"].keys() == EXPORTED.keys() - rivals
    assert document["protocol"]["contenders"]["ours"]["report"]["replaced"]
    summary = document["summary"]
    assert set(summary["recompiled"]["ours"]) <= {
        f"batch {batch}, length {length}" for batch in (1, 4) for length in (1, 32)
    }
    assert summary["compile_s"].keys() == {"compile", "ours"}
    assert min(*summary["snapshot"].values(), *summary["compile_s"].values()) > 0
    assert all(0 < row["peak_fraction"] <= 1.1 for row in document["rows"])
    assert summary["trials"] == summary["gain"]["trials"] > 0
    assert summary["gain"]["gain"] > 0
    assert summary["tuning_s"] > summary["gain"]["seconds"] > 0
