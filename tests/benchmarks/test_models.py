"""The benchmark of whole models, on a tiny one: extracted, tuned through a service, compiled, timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.models import compared, lengths_of, main, recompiled, summary_of, tasks_of
from benchmarks.nets import contenders
from benchmarks.nets.contenders import EAGER, Contender, lacking
from benchmarks.nets.tuning import Point, curve_of, known_of, saved
from benchmarks.nets.zoo import MODELS, build
from benchmarks.rivals.onnx_files import EXPORTED
from tests.shares import chosen
from tuner.program.job.budget_plan import MIN_TRIALS
from tuner.search.summary import SearchSummary, Stage

ROOT = Path(__file__).resolve().parents[2]


def test_weights_are_the_same_in_every_process() -> None:
    one, other = build("bert-tiny"), build("bert-tiny")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("model", chosen(["resnet-tiny"], ["bert-tiny", "resnet-tiny"]))
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


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_rivals_that_read_onnx_compute_the_model_at_sizes_that_they_were_not_exported_at(
    name: str, tmp_path: Path
) -> None:
    if reason := lacking(name):
        pytest.skip(reason)
    rival, eager = (Contender(each, "bert-tiny", 1, tmp_path) for each in (name, EAGER))
    for batch, length in ((4, 32), (1, 7), (1, 1)):
        (_, found), (_, right) = rival.prepare(batch, length), eager.prepare(batch, length)
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert rival.sample(2) > 0


def test_rivals_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "find_spec", lambda _: None)
    assert lacking(EAGER) == ""
    assert all(lacking(name).startswith(f"{name}, onnxscript is not installed: ") for name in EXPORTED)


def event(position: int, second: int, **summary: Any) -> dict[str, Any]:
    data = SearchSummary(**summary).to_json() | {"position": position}
    return {"kind": "progress", "data": data, "created_at": f"2026-01-01T00:00:{second:02}+00:00"}


def test_what_a_job_has_gained_counts_workloads_as_often_as_they_occur() -> None:
    begun = {"kind": "state", "data": {"state": "RUNNING"}, "created_at": "2026-01-01T00:00:00+00:00"}
    timed = {"default_objective_s": 4.0, "phase": Stage.SEARCH}
    events = [
        {**begun, "data": {"state": "WAITING"}},
        begun,
        event(0, 5, trials=8, objective_s=4.0, **timed),
        event(1, 7, trials=4, objective_s=1.0, default_objective_s=4.0, phase=Stage.THEORY),
        event(1, 10, trials=8, objective_s=4.0, **timed),
        event(0, 12, trials=16, objective_s=2.0, **timed),
    ]
    # Not before the default of both is known at every instance.
    assert curve_of(events, [3, 1]) == [Point(16, 10.0, 1.0), Point(24, 12.0, 16.0 / 10.0)]
    assert curve_of(events[:-2], [3, 1]) == []


def test_what_a_warm_search_saved_is_a_share_of_the_cold_one() -> None:
    curve, cold = [Point(8, 5.0, 1.2), Point(16, 10.0, 1.5)], {"trials": 64, "seconds": 40.0, "gain": 1.5}
    assert saved(curve, cold) == {
        "reached": {"trials": 16, "seconds": 10.0, "gain": 1.5},
        "share_of_trials": 0.25,
        "share_of_seconds": 0.25,
    }
    assert saved(curve, cold | {"gain": 2.0})["share_of_trials"] is None


def test_sizes_that_are_compiled_again_are_told() -> None:
    facts = {"compiled_at": [{"size": "batch 1, length 32", "graphs": 1}, {"size": "batch 1, length 1", "graphs": 1}]}
    assert recompiled({"ours": facts, "eager": {"compiled_at": []}}) == {"ours": ["batch 1, length 1"], "eager": []}


def test_libraries_that_do_not_say_what_was_gained_are_not_compared(tmp_path: Path) -> None:
    assert known_of(tmp_path) == {}
    with pytest.raises(SystemExit):
        main(["--model", "bert-tiny", "--after", "bert-tiny-deep", "--libraries", str(tmp_path), "--json", "out.json"])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_tiny_model_is_tuned_through_a_service_and_timed(tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    line = [sys.executable, "-m", "benchmarks.models", "--model", "bert-tiny", "--lengths", "3", "--json", str(out)]
    line += ["--after", "bert-tiny-deep"]
    environment = {**os.environ, "SHAPEWRIGHT_DATA_DIR": str(tmp_path)}
    # Trials end the jobs: on a loaded machine half a minute gives eight workloads none, and warm starts no measure. As
    # many as these let each workload be searched.
    trials = str(8 * MIN_TRIALS)
    subprocess.run([*line, "--minutes", "8", "--trials", trials], check=True, timeout=1800, cwd=ROOT, env=environment)
    document = json.loads(out.read_text())
    assert [row["shape"]["length"] for row in document["rows"]] == [32, 17, 1] * 2
    assert all(row["max_abs_error"] <= row["tolerance"] for row in document["rows"])
    rivals = {name for name in EXPORTED if not lacking(name)}
    assert document["summary"]["geomean_vs"].keys() == {"eager", "compile", *rivals}
    assert document["protocol"]["skipped"].keys() == EXPORTED.keys() - rivals
    assert document["protocol"]["contenders"]["ours"]["report"]["replaced"]
    summary = document["summary"]
    assert set(summary["recompiled"]["ours"]) <= {
        f"batch {batch}, length {length}" for batch in (1, 4) for length in (1, 32)
    }
    assert min(summary["snapshot"].values()) > 0
    warm = summary["warm"]
    assert (warm["after"], warm["shared"]) == ("bert-tiny-deep", warm["workloads"])
    assert warm["cold"]["gain"] > 0
