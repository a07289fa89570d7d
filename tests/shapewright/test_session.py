"""`sw.tune` from task to library, on this machine's own device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shapewright as sw
from tests.compiled import runnable
from tuner.records import Phase

T = sw.ShapeVar("T", range(1, 33))
TASK = sw.SearchTask(
    sw.ops.dense, args={"m": 2 * T, "n": 48, "k": 32}, shape_vars=(T,), instances=[1, 7, 32], weights=[1.0, 2.0, 1.0]
)


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture(scope="module")
def earlier() -> set[psutil.Process]:
    """The processes that other modules' fixtures run."""
    return children()


@pytest.fixture(scope="module")
def result(events: list[dict[str, Any]], earlier: set[psutil.Process]) -> sw.TuneResult:
    return sw.tune(TASK, trials=8, seed=1, callbacks=[events.append])


@pytest.mark.soak
def test_a_search_for_an_older_cpu_runs_here_and_keeps_to_its_instructions() -> None:
    target = runnable("x86-64-v3")
    task = sw.SearchTask(sw.ops.dense, {"m": 2 * T, "n": 48, "k": 32}, (T,), target=target.to_json())
    result = sw.tune(task, trials=6, seed=1)
    assert all(each.ok for each in result.results)
    # Of 16 registers; AVX-512 has 32.
    assert all(each.kernel["mr"] * each.kernel["nv"] < 16 for each in result.results)
    library = result.build()
    assert library.manifest["target"] == target.to_json()
    for rows in (1, 13, 64, 65):
        check(library, rows)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def check(library: sw.Library, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((rows, 32), (48, 32)))
    out = np.full((rows, 48), np.nan, np.float32)
    library(x, library.pack(w), out)
    np.testing.assert_allclose(out, x @ w.T, rtol=1e-4, atol=3e-5)


def test_a_small_budget_gives_a_library_that_is_right(result: sw.TuneResult) -> None:
    library = result.build()
    for rows in (1, 2, 3, 14, 64, 65, 200):
        check(library, rows)


def test_every_trial_is_told_and_timed_on_the_device(result: sw.TuneResult, events: list[dict[str, Any]]) -> None:
    assert 0 < len(result.results) <= 8
    assert all(results.ok or results.error for results in result.results)
    assert any(results.ok for results in result.results)
    assert {results.phase for results in result.results} <= set(Phase)
    assert len({results.device for results in result.results if results.ok}) == 1
    assert events[-1]["trials"] == result.summary["trials"] == len(result.results)
    assert (events[0]["phase"], events[0]["trials"], events[0]["elapsed_s"]) == ("plan", 0, 0.0)
    assert {"theory", "build", "verify"} <= {event["phase"] for event in events}
    assert result.task.target is not None
    assert result.summary["phase"] == "done"


def test_a_notebook_shows_the_result(result: sw.TuneResult) -> None:
    text = result._repr_html_()
    for part in (str(TASK.workload), "done", f"{len(result.results)} of 8 trials", str(TASK.instances[0])):
        assert part in text


def test_numpy_and_the_roof_are_measured_beside(result: sw.TuneResult, events: list[dict[str, Any]]) -> None:
    points, roof = result.baselines.points, result.baselines.roof
    assert [point.instance for point in points] == list(TASK.instances)
    assert roof is not None
    for point in points:
        flops = TASK.workload.flops(TASK.workload.dims(point.instance.shape))
        assert 0 < flops / point.latency_s < 2 * roof.flops_per_s
    assert result.summary["speedup_vs_numpy"] is None or result.summary["speedup_vs_numpy"] > 0


def test_the_library_is_kept_where_it_is_asked_for(result: sw.TuneResult, tmp_path: Path) -> None:
    library = result.build(tmp_path / "deep" / "folder")
    assert library.directory == tmp_path / "deep" / "folder"
    again = sw.load(library.directory)
    assert again.digest == library.digest == result.summary["digest"]
    check(again, 5)


def test_no_process_is_left_behind(result: sw.TuneResult, earlier: set[psutil.Process]) -> None:
    names = [" ".join(child.cmdline()) for child in children() - earlier]
    assert result.results
    assert [name for name in names if "device_process" in name or "popen" in name] == []


@pytest.mark.parametrize("budget", [{}, {"trials": -1}, {"seconds": 0}])
def test_a_search_needs_a_budget(budget: dict[str, Any]) -> None:
    with pytest.raises(sw.InvalidInput) as caught:
        sw.tune(TASK, **budget)
    assert caught.value.field.startswith("budget")
