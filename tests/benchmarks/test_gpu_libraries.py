"""The benchmark of libraries for GPUs, as far as no GPU is asked: its arguments, what is left out, its summary."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.libraries import Step, fill, named_folder, summary


def document() -> dict[str, Any]:
    return {"rows": [], "left_out": []}


def failing(error: Exception) -> dict[str, Any]:
    raise error


def test_what_fails_is_left_out_and_the_rest_is_done() -> None:
    found = document()
    steps: list[Step] = [("rows", "a", 1, lambda: failing(ValueError("odd"))), ("rows", "b", 2, lambda: {"us": {}})]
    fill(found, steps, time.monotonic() + 60)
    assert found == {"rows": [{"us": {}}], "left_out": [["rows", "a", 1, "ValueError: odd"]]}


def test_a_lost_context_ends_all_and_so_does_the_time() -> None:
    found = document()
    steps: list[Step] = [("rows", "a", 1, lambda: failing(RuntimeError("CUDA error: an illegal memory access")))]
    steps.append(("rows", "b", 2, lambda: failing(AssertionError("not reached"))))
    fill(found, steps, time.monotonic() + 60)
    assert [each[1] for each in found["left_out"]] == ["a"]
    fill(found, steps, time.monotonic() - 1)
    assert [each[3] for each in found["left_out"][1:]] == ["no time is left"] * 2


def test_the_summary_has_ratios_over_the_first() -> None:
    us = {"ours": 10.0, "mm": 20.0}, {"ours": 40.0, "mm": 20.0, "theory": 80.0}
    rows = [{"workload": "dense", "dtype": "float16", "us": each, "launches": 10**9} for each in us]
    assert summary(rows, "ours") == {"dense float16": {"mm": [1.0, 0.5], "theory": [2.0, 2.0]}}


def test_folders_have_names_of_their_own(tmp_path: Path) -> None:
    assert named_folder(f"ours={tmp_path}") == ("ours", tmp_path)
    for text in ("", "ours", f"={tmp_path}", f"mm={tmp_path}", f"ours={tmp_path}/none"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no NAME=DIR"):
            named_folder(text)
