"""What theory alone is worth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import theory
from tests.benchmarks.test_kernels import TINY

LIBRARIES = [theory.TYPICAL, theory.CALIBRATED, theory.SEARCHED]


def test_regret_of_theory_is_over_the_searchs_time() -> None:
    rows = [
        {"s": {theory.TYPICAL: 2.0, theory.SEARCHED: 1.0}, "libraries": LIBRARIES},
        {"s": {theory.TYPICAL: 1.0, theory.CALIBRATED: 1.0, theory.SEARCHED: 2.0}, "libraries": LIBRARIES},
    ]
    regret = theory.summary_of(rows)
    assert set(regret) == {theory.TYPICAL, theory.SEARCHED}, "not every shape has a calibrated one"
    assert regret[theory.TYPICAL] == {"regret": pytest.approx(0.0), "worst": pytest.approx(1.0)}


def test_theory_is_compared_with_the_fastest_rival_at_each_shape() -> None:
    libraries = [theory.TYPICAL, theory.SEARCHED]
    seconds = ({"typical": 2.0, "searched": 1.0, "mm": 4.0, "mkl": 8.0}, {"typical": 1.0, "searched": 1.0, "mm": 1.0})
    rows = [
        {"s": each, "samples_s": {name: [time] * 3 for name, time in each.items()}, "libraries": libraries}
        for each in seconds
    ]
    summary = theory.summary_of(rows)
    assert summary[theory.TYPICAL]["geomean_vs_best"] == pytest.approx(2**0.5)
    assert summary[theory.TYPICAL]["interval_vs_best"] == pytest.approx((2**0.5, 2**0.5))
    assert (summary[theory.TYPICAL]["worst_vs_best"], summary[theory.SEARCHED]["worst_vs_best"]) == (1.0, 1.0)


@pytest.mark.soak
def test_a_real_search(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.yaml", tmp_path / "out.json"
    suite.write_text(TINY)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.theory", str(suite), "--seconds", "6", "--json", str(out)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert theory.TYPICAL in document["summary"]
    assert document["rows"]
