"""Pictures have the data they claim, and are files that can be looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'shapewright[bench]'")

from matplotlib.figure import Figure

from benchmarks.pictures import pictures_of, policies, quality


def document() -> dict[str, Any]:
    rows = [
        {"workload": "w", "shape": {"T": size}, "tuned_on": size == 16, "flops": size * 1000, "ours_s": 1e-6,
         "rivals_s": {"mm": 2e-6} | ({"metaschedule": 1e-6} if size == 16 else {})}
        for size in (1, 16, 128)
    ]  # fmt: skip
    races = [
        {"workload": "w", "budget": "3 trials", "policy": policy, "curve": [None, 2e-3, best][:length]}
        for policy, best, length in (("random", 1.5e-3, 3), ("random", 1.4e-3, 2), ("droplet", 1e-3, 3))
    ]
    return {"rows": rows, "policies": races}


def curve() -> dict[str, Any]:
    seconds = {"typical": 2e-6, "10 s": 1e-6, "searched": 0.5e-6}
    row = {"workload": "w", "shape": {"T": 1}, "s": seconds | {"mm": 1e-6}, "libraries": list(seconds)}
    points = {name: {"elapsed_s": index} for index, name in enumerate(seconds)}
    return {"rows": [row, row], "points": {"w": points}}


def test_a_document_has_pictures_of_what_it_has_data_for() -> None:
    assert [name for name, _ in pictures_of(document())] == ["w-3-trials-policies", "w-speed"]
    assert [name for name, _ in pictures_of(curve())] == ["w-quality"]


def test_a_policys_line_is_the_median_of_its_seeds_up_to_the_shortest() -> None:
    axes = Figure().subplots()
    policies(axes, document()["policies"])
    random, droplet = axes.get_lines()
    assert (random.get_label(), droplet.get_label()) == ("random", "droplet")
    assert np.asarray(random.get_xdata()).tolist() == [1, 2]
    assert np.asarray(random.get_ydata())[1] == pytest.approx(2.0)
    assert np.asarray(droplet.get_ydata())[2] == pytest.approx(1.0)


def test_quality_is_the_speed_of_searches_of_growing_length() -> None:
    axes, given = Figure().subplots(), curve()
    quality(axes, given["rows"], given["points"]["w"])
    searched, theory = axes.get_lines()
    assert np.asarray(searched.get_ydata()) == pytest.approx([1.0, 2.0])
    assert np.asarray(theory.get_ydata())[0] == pytest.approx(0.5)


def test_every_picture_is_a_png(tmp_path: Path) -> None:
    given = tmp_path / "run.json"
    given.write_text(json.dumps(document()))
    subprocess.run(
        [sys.executable, "-m", "benchmarks.pictures", str(given), "-o", str(tmp_path / "out")],
        cwd=Path(__file__).parents[2], check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    files = sorted((tmp_path / "out").iterdir())
    assert [file.stem for file in files] == ["run-w-3-trials-policies", "run-w-speed"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
