"""Libraries in TF32 and in float32: which of them a model takes, where it allows the former and where it does not."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from shapewright.sources.finder import finder_of
from shapewright.sources.source import Match
from shapewright.torch.devices import allows_tf32
from tests.conftest import MakeOnce
from tests.shapewright.libraries import M, save
from tuner.program.job.build import has_tf32, in_tf32, make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

ASKED = make_workload("dense", {"m": "M", "n": 8, "k": 8})
GPU = Target.from_json({"kind": "cuda", "arch": "sm_90"})


def found(sources: list[Path], asked: Workload, tf32: bool) -> str:
    match = finder_of(sources, tf32=tf32).find(asked)
    return match.library.digest if isinstance(match, Match) else ""


def test_a_model_that_allows_tf32_takes_either_and_others_float32_alone(once: MakeOnce) -> None:
    exact = SearchTask(ASKED, None, (M,), target=native())
    coarse = SearchTask(in_tf32(ASKED), None, (M,), target=native())
    folders = [once(f"tf32-{at}", lambda into, task=task: save(into, task))  # type: ignore[misc]
               for at, task in enumerate((exact, coarse))]  # fmt: skip
    digests = [json.loads((folder / "manifest.json").read_text())["digest"] for folder in folders]
    static = make_workload("dense", {"m": 16, "n": 8, "k": 8})
    for asked in (ASKED, static):
        assert found(folders, asked, tf32=False) == digests[0]
        assert found(folders, asked, tf32=True) == digests[1]
        assert found(folders[:1], asked, tf32=True) == digests[0]
        assert found(folders[1:], asked, tf32=False) == ""


def test_what_is_to_be_tuned_is_in_tf32_where_that_is_allowed(tmp_path: Path) -> None:
    plain, coarse = (finder_of(tmp_path, tf32=tf32) for tf32 in (False, True))
    assert plain.wanted(ASKED) == ASKED
    assert coarse.wanted(ASKED) == in_tf32(ASKED)
    norm = make_workload("softmax", {"m": "M", "n": 8})
    assert not has_tf32(norm)
    assert coarse.wanted(norm) == norm


def test_pytorchs_settings_decide_and_for_gpus_alone() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert not allows_tf32(GPU)
        torch.set_float32_matmul_precision("high")
        assert allows_tf32(GPU)
        assert not allows_tf32(native())
    finally:
        torch.set_float32_matmul_precision(before)
