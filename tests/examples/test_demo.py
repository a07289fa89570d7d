"""What the demo compares with, and the three lines that it ends with. That it runs stands with `make demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shapewright as sw
from examples import demo
from examples.demo import Timed
from tests.fakes import TASK
from tests.serving import small_dispatcher
from tests.shapewright.libraries import save
from tuner.blas import Blas
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.search.verdict import Ratio

ROOT = Path(__file__).parents[2]
BLAS = "import examples.demo as demo; print(demo.numpys_blas(()).kernels)"
JOB = {"trials": 143, "summary": {"elapsed_s": 122.3, "kernels": 4}}
FASTER, EQUAL = Ratio("default", 1.07, 1.05, 1.1), Ratio("default", 1.0, 0.98, 1.02)
NUMPY = Ratio("numpy", 1.14, 1.11, 1.17)


def timed(default: Ratio, wrong: list[str]) -> Timed:
    library: Any = SimpleNamespace(dispatcher=small_dispatcher(TASK))
    rows = [
        {"shape": t, "m": t, "kernel": "k", "tuned_on": t == 7, "ours_s": 1e-6, "rivals_s": {"theory": 2e-6}}
        for t in range(1, 129)
    ]
    return Timed(library, rows, [default, NUMPY], wrong, Blas("openblas", "0.3", "SkylakeX", 1), "; noisy")


def test_the_blas_is_not_hobbled_by_what_the_demo_inherits() -> None:
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Prescott", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BLAS], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() not in ("", "Prescott")


def test_it_ends_with_what_was_tuned_how_much_faster_and_whether_it_is_right() -> None:
    tuned, speed, right = timed(FASTER, []).conclusion(JOB)
    assert tuned.startswith("tuned: dense(") and tuned.endswith("for T = 1 to 128: 143 trials, 122 s, 4 kernels")
    assert speed == (
        "speed: 1.07x over the default (1.05x to 1.10x), 1.14x over NumPy's BLAS (1.11x to 1.17x) (all 128 shapes "
        "together, in turns; NumPy has openblas 0.3, SkylakeX kernels, 1 thread); noisy"
    )
    assert right == "right: all 128 shapes match NumPy within 0.001, and no memory around them was touched"


def test_it_says_where_theory_was_enough_and_what_is_wrong() -> None:
    _, speed, right = timed(EQUAL, ["T=3: differs from NumPy by 1"]).conclusion(JOB)
    assert speed.startswith("speed: equal to the default (0.98x to 1.02x), 1.14x over NumPy's BLAS")
    assert "theory was enough here" in speed
    assert right == "right: WRONG at 1 of 128 shapes: T=3: differs from NumPy by 1"


def test_the_table_has_every_shape_and_the_screen_those_that_were_tuned() -> None:
    lines = timed(FASTER, []).table()
    assert len(lines) == 129 and [line for is_shown, line in lines if is_shown] == [lines[0][1], lines[7][1]]
    assert lines[7][1].startswith("  7*") and "2.00x" in lines[7][1]


def test_where_time_is_short_for_enough_turns_every_shape_is_checked_and_none_has_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ShapeVar("T", range(1, 4))
    save(tmp_path / "library", SearchTask("dense", {"m": rows, "n": 16, "k": 8}, (rows,), target=native()))
    library = sw.load(tmp_path / "library")
    monkeypatch.setattr(demo, "TURNS_S", 0.0)
    found = demo._compare(library, library)
    _, speed, right = found.conclusion(JOB)
    assert speed.startswith("speed: not timed: 0 s are too short to take 4 turns") and speed.endswith(
        "when nothing else runs"
    )
    assert right == "right: all 3 shapes match NumPy within 0.001, and no memory around them was touched"
    assert [line.split()[3] for _, line in found.table()[1:]] == ["-"] * 3
