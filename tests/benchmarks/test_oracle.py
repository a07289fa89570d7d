"""The oracle on a small search: what it measures, and where regret comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

import shapewright as sw
from benchmarks import oracle
from benchmarks.oracle import findings
from shapewright.session import tune_here
from tuner.program.target import native


@pytest.mark.soak
def test_candidates_of_a_shape_are_the_librarys_the_searchs_and_fresh_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "KNOWN", 3)
    monkeypatch.setattr(oracle, "FRESH", 2)
    rows = sw.ShapeVar("T", range(1, 17))
    task = sw.SearchTask("dense", {"m": 4 * rows, "n": 64, "k": 48}, (rows,), [4, 16], target=native())
    tuned = tune_here(task, trials=4)
    (finding,) = findings(tuned, tuned.save(tmp_path / "ours"), [{"T": 7}])
    own = {kernel.id for kernel in sw.load(tmp_path / "ours").kernels}
    measured = {result.kernel.id for result in tuned.results if result.ok}
    assert finding["oracle_candidates"] > len(own), "fresh ones, or others of the search, are among them"
    assert finding["oracle_candidates"] <= len(own | measured) + 2
    assert 0 < finding["oracle_s"] < 1e-3
    assert finding["regret"] == pytest.approx(finding["dispatched_s"] / finding["oracle_s"] - 1)
