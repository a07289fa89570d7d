"""The command that packs bundles and reads them back, with a compiler that is a stand-in, and results of no GPU."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from tests.gpu_measuring import Compiler
from tests.searching import THEORY
from tests.tuner.bundle.test_bundle import DOCUMENT
from tuner.bundle import candidates
from tuner.bundle.form import RECORDS, RESULTS, read_bundle
from tuner.bundle.results import Results
from tuner.measure.gpu.facts import GpuFacts
from tuner.search.policy import shortlist

H100 = GpuFacts(
    0, "NVIDIA H100", "00000000:01:00.0", "sm_90", 132, 1980, 50 << 20, 3352 * 10**9, "13.0", None, 700, None, None, "",
)  # fmt: skip


def test_a_job_is_packed_for_the_named_instruction_sets_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LocalBuilder", Compiler)
    monkeypatch.setattr(candidates, "shortlist", partial(shortlist, settings=THEORY))
    job, folder = tmp_path / "job.yaml", tmp_path / "bundle"
    job.write_text(json.dumps({**DOCUMENT, "workloads": DOCUMENT["workloads"][:1]}))
    few = ("--choices", "2", "--others", "1")
    command.main(["--bundle", str(folder), "--job", str(job), "--arch", "sm_80", "--arch", "sm_90", *few])
    bundle = read_bundle(folder)
    entries = bundle.entries
    assert [each.task.known_target.mcpu for each in entries] == ["sm_80", "sm_90"]
    assert "0.0 MB" not in capsys.readouterr().out
    task = entries[1].task
    answers = [{"latency_s": 1e-5, "samples_s": [1e-5], "anchor_s": 1e-4} for _ in task.instances]
    with Results(folder / RESULTS, H100, "far:gpu0", bundle.digest) as results:
        results.add(1, 0, answers, 0.5)
    command.main(["--import", str(folder)])
    said = capsys.readouterr().out
    assert f"{len(answers)} records, 0 of them failures" in said
    assert "cuda: h100 (sm_90, 132 SMs, 3352 GB/s)" in said
    assert f"shapewright tune {folder}/job.json -o DIR --measured {folder / RECORDS}" in said


def test_what_will_not_do_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"holds no bundle\.json"):
        command.main(["--import", str(tmp_path)])
    with pytest.raises(SystemExit):
        command.main([])
    assert "give --bundle DIR or --import DIR" in capsys.readouterr().err
