"""The benchmark of models on GPUs, as far as no GPU is asked: the job that it writes, its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu.models import main, summary
from tuner.program.job.jobspec import parse_job


def test_a_model_becomes_a_job_of_theory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    arguments = ["models", "bert-tiny", "--job", "--dtype", "float16", "--product", "h100", "--json", str(file)]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    spec = parse_job(json.loads(file.read_text()))
    assert spec.budget.trials == 0
    assert {str(task.known_target.mcpu) for task in spec.tasks} == {"sm_90"}
    assert {tensor.dtype for task in spec.tasks for tensor in task.workload.operands} == {"float16"}


def test_rows_without_ours_count_for_nothing() -> None:
    graphs = {"ours": 10.0, "eager": 20.0}, {"eager": 5.0}
    called = {"ours": 100.0, "eager": 400.0}, {"eager": 5.0}
    rows = [{"us": us, "launches": 10**9, "called_us": each} for us, each in zip(graphs, called, strict=True)]
    assert summary(rows) == {"graphs": {"eager": [2.0, 2.0]}, "called": {"eager": [4.0, 4.0]}}
