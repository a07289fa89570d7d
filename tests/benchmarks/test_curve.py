"""Quality over tuning time: the document, on a search of two seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.test_kernels import TINY


@pytest.mark.soak
def test_theory_and_each_length_are_compared_at_every_test_shape(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.yaml", tmp_path / "out.json"
    suite.write_text(TINY)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.curve", str(suite), "--seconds", "2", "--against", "", "--json", str(out)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (curve,) = json.loads(out.read_text())["curves"]
    assert [point["name"] for point in curve["points"]] == ["theory", "2 s"]
    assert curve["points"][0]["trials"] == 0
    assert [row["shape"] for row in curve["rows"]] == [{"T": 3}, {"T": 16}]
    for row in curve["rows"]:
        assert set(row["seconds"]) == {"theory", "2 s"}
    assert curve["points"][0]["geomean_vs_theory"] == 1.0
    assert curve["points"][0]["geomean_vs_best"] is None, "no vendor was asked for"
