"""The oracle on a small search: what it measures, and where regret comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

import shapewright as sw
from benchmarks import oracle
from benchmarks.oracle import Finding, oracle_of
from shapewright.session import tune_here
from tuner.program.target import native


def test_regret_is_what_the_dispatched_call_takes_beyond_the_best() -> None:
    assert Finding(2e-6, 3e-6, "k", 5).regret == pytest.approx(0.5)


@pytest.mark.soak
def test_candidates_of_a_shape_are_the_librarys_the_searchs_and_fresh_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "KNOWN", 3)
    monkeypatch.setattr(oracle, "FRESH", 2)
    rows = sw.ShapeVar("T", range(1, 17))
    task = sw.SearchTask("dense", {"m": 4 * rows, "n": 64, "k": 48}, (rows,), [4, 16], target=native())
    tuned = tune_here(task, trials=4, seconds=30)
    with oracle_of(tuned, tuned.save(tmp_path / "ours")) as known:
        finding = known.at({"T": 7})
    own = {kernel.id for kernel in sw.load(tmp_path / "ours").kernels}
    measured = {result.kernel.id for result in tuned.results if result.ok}
    assert finding.candidates > len(own), "fresh ones, or others of the search, are among them"
    assert finding.candidates <= len(own | measured) + 2
    assert 0 < finding.oracle_s < 1e-3
    assert 0 < finding.dispatched_s < 1e-3
