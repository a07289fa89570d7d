"""`bundle pack` with a compiler that is a stand-in, and `bundle import` of results that no GPU gave."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.gpu_measuring import Compiler
from tests.searching import THEORY
from tests.shapewright.conftest import Shapewright
from tests.tuner.bundle.test_bundle import DOCUMENT
from tuner.bundle import candidates
from tuner.bundle.form import RECORDS, RESULTS, read_bundle
from tuner.bundle.results import Results
from tuner.measure.builders import local
from tuner.measure.gpu.facts import GpuFacts
from tuner.search.policy import shortlist

H100 = GpuFacts(
    0, "NVIDIA H100", "00000000:01:00.0", "sm_90", 132, 1980, 50 << 20, 3352 * 10**9, "13.0", None, 700, None, None, "",
)  # fmt: skip
FEW = ("--choices", 2, "--others", 1)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of one product, and quick ways to choose its candidates and to compile them."""
    monkeypatch.setattr(local, "LocalBuilder", Compiler)
    monkeypatch.setattr(candidates, "shortlist", partial(shortlist, settings=THEORY))
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**DOCUMENT, "workloads": DOCUMENT["workloads"][:1]}))
    return path


def measure(folder: Path, entry: int) -> int:
    """Put down what a host would answer for the first candidate of an entry; the number of answers."""
    bundle = read_bundle(folder)
    answers = [{"latency_s": 1e-5, "samples_s": [1e-5], "anchor_s": 1e-4} for _ in bundle.entries[entry].task.instances]
    with Results(folder / RESULTS, H100, "far:gpu0", bundle.digest) as results:
        results.add(entry, 0, answers, 0.5)
    return len(answers)


def test_a_job_is_packed_for_the_named_instruction_sets_and_read_back(
    shapewright: Shapewright, job: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "h100"
    packed = shapewright("bundle", "pack", job, folder, "--arch", "sm_80", "--arch", "sm_90", *FEW)
    assert packed.code == 0, packed.err
    assert [each.task.known_target.mcpu for each in read_bundle(folder).entries] == ["sm_80", "sm_90"]
    assert "2 of 2: " in packed.err
    assert " left out, " in packed.out and "0.0 MB" not in packed.out
    assert f"copy {folder} to the GPU's machine, and run: python h100/run.py --seconds S" in packed.out
    answers = measure(folder, 1)
    said = shapewright("bundle", "import", folder).out
    assert f"{answers} records, 0 of them failures" in said
    assert "cuda: h100 (sm_90, 132 SMs, 3352 GB/s)" in said
    assert f"shapewright tune {folder}/job.json -o DIR --measured {folder / RECORDS}" in said


def test_both_give_documents(shapewright: Shapewright, job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "h100"
    packed = shapewright("bundle", "pack", job, folder, "--arch", "sm_90", *FEW, "--json").json
    (entry,) = read_bundle(folder).entries
    assert (packed["directory"], packed["candidates"]) == (str(folder), len(entry.candidates))
    assert packed["candidates"] + packed["left_out"] == 3
    assert packed["bytes"] > 100_000 and packed["seconds"] > 0
    answers = measure(folder, 0)
    found = shapewright("bundle", "import", folder, "--json").json
    assert found == {
        "file": str(folder / RECORDS),
        "job": str(folder / "job.json"),
        "records": answers,
        "failed": 0,
        "targets": json.loads((folder / "job.json").read_text())["targets"],
        "others": [],
    }


def test_what_will_not_do_is_refused_with_what_it_is_about(shapewright: Shapewright, job: Path, tmp_path: Path) -> None:
    mine, empty = tmp_path / "mine", tmp_path / "empty"
    for each in (mine, empty):
        each.mkdir()
    (mine / "notes").touch()
    for line, field, message in (
        (("pack", job, mine, "--arch", "sm_90"), "DIR", "is no bundle"),
        (("pack", job, empty), "target", "is no GPU"),
        (("pack", job, empty, "--choices", 0), "--choices", "x>=1"),
        (("import", empty), str(empty), "holds no bundle.json"),
    ):
        ran = shapewright("bundle", *line, "--json")
        assert (ran.code, ran.error["field"]) == (2, field)
        assert message in ran.error["message"]


def test_a_further_round_passes_over_what_was_measured(shapewright: Shapewright, job: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert shapewright("bundle", "pack", job, first, "--arch", "sm_90", *FEW).code == 0
    measure(first, 0)
    assert shapewright("bundle", "import", first).code == 0
    records = str(first / RECORDS)
    packed = shapewright("bundle", "pack", job, second, "--arch", "sm_90", *FEW, "--from", records)
    assert packed.code == 0, packed.err
    timed = read_bundle(first).entries[0].candidates[0].kernel
    proposed = [each.kernel for each in read_bundle(second).entries[0].candidates]
    assert proposed and timed not in proposed
    missing = shapewright("bundle", "pack", job, tmp_path / "third", *FEW, "--arch", "sm_90", "--from", "nowhere")
    assert missing.code != 0 and "--from" in missing.err
