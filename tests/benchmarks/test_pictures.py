"""Pictures have the data they claim, and are files that can be looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shapewright as sw
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule import default_kernel, layout_group, space_of

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'shapewright[bench]'")

from matplotlib.figure import Figure

from benchmarks.pictures import pictures_of, policies, rank_correlation, regret_by_kernels


def search() -> dict[str, Any]:
    """Three kernels of one layout, each the best at one of three shapes."""
    rows = sw.ShapeVar("T", range(1, 129))
    task = sw.SearchTask("dense", {"m": rows, "n": 64, "k": 32}, (rows,), [1, 16, 128], target=native(), max_kernels=4)
    space, rng = space_of(task), np.random.default_rng(0)
    kernels = [default_kernel(task)]
    while len(kernels) < 3:
        other = space.mutate(kernels[-1], rng)
        if other not in kernels and layout_group(task, other) == layout_group(task, kernels[0]):
            kernels.append(other)
    results = [
        MeasureResult(kernel, WorkloadInstance.of(instance.shape), 1e-5 * (1 + (index != number)), predicted_s=1e-5)
        for index, kernel in enumerate(kernels)
        for number, instance in enumerate(task.instances)
    ]
    progress = [{"elapsed_s": 1.0, "objective_s": 2e-5, "default_objective_s": 3e-5}]
    return {
        "workload": "w", "task": task.to_json(), "progress": progress,
        "results": [result.to_json() for result in results],
    }  # fmt: skip


def test_regret_falls_with_the_number_of_kernels_to_nothing() -> None:
    mean, worst = regret_by_kernels(search())
    assert len(mean) == 4
    assert mean[0] > 0.3
    assert worst[0] == pytest.approx(1.0)
    assert mean[2] == pytest.approx(0.0, abs=1e-6)
    assert all(mean[:-1] >= mean[1:])


def test_rank_correlation_is_spearmans() -> None:
    rising = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(rising, rising**3) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    assert rank_correlation(rising, np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(2 / 5**0.5)
    assert rank_correlation(rising[:1], rising[:1]) is None
    assert rank_correlation(rising, np.ones(4)) is None


def document() -> dict[str, Any]:
    rows = [
        {"workload": "w", "shape": {"T": size}, "tuned_on": size == 16, "flops": size * 1000, "ours_s": 1e-6,
         "rivals_s": {"mm": 2e-6} | ({"metaschedule": 1e-6} if size == 16 else {})}
        for size in (1, 16, 128)
    ]  # fmt: skip
    point = {"geomean_vs_best": 1.2, "geomean_vs_theory": 1.0}
    curve = {
        "workload": "w",
        "points": [point | {"seconds": 0.0, "elapsed_s": 2.0}, point | {"seconds": 10.0, "elapsed_s": 9.9}],
        "metaschedule": {"geomean_vs_best": 0.9},
    }
    races = [
        {"workload": "w", "budget": "3 trials", "policy": policy, "curve": [None, 2e-3, best][:length]}
        for policy, best, length in (("random", 1.5e-3, 3), ("random", 1.4e-3, 2), ("droplet", 1e-3, 3))
    ]
    return {"rows": rows, "searches": [search()], "curves": [curve], "policies": races}


def test_a_document_without_trials_has_no_pictures_of_them() -> None:
    short = document()
    short["searches"][0]["results"] = []
    assert [name for name, _ in pictures_of(short)] == [
        "w-3-trials-policies", "w-quality", "w-speed", "w-search",
    ]  # fmt: skip


def test_a_policys_line_is_the_median_of_its_seeds_up_to_the_shortest() -> None:
    axes = Figure().subplots()
    policies(axes, document()["policies"])
    random, droplet = axes.get_lines()
    assert (random.get_label(), droplet.get_label()) == ("random", "droplet")
    assert np.asarray(random.get_xdata()).tolist() == [1, 2]
    assert np.asarray(random.get_ydata())[1] == pytest.approx(2.0)
    assert np.asarray(droplet.get_ydata())[2] == pytest.approx(1.0)


def test_every_picture_is_a_png(tmp_path: Path) -> None:
    given = tmp_path / "run.json"
    given.write_text(json.dumps(document()))
    subprocess.run(
        [sys.executable, "-m", "benchmarks.pictures", str(given), "-o", str(tmp_path / "out")],
        cwd=Path(__file__).parents[2], check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    files = sorted((tmp_path / "out").iterdir())
    assert [file.stem for file in files] == [
        f"run-w-{name}" for name in ("3-trials-policies", "calibration", "kernels", "quality", "search", "speed")
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
