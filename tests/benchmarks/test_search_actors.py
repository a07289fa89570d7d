"""The benchmark of searches in actors, in a process of its own: there is one connection to Ray in each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_a_trial_has_a_time_in_both_places(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    few = ["--rounds", "1", "--trials", "16", "--trial-s", "0"]
    command = [sys.executable, "-m", "benchmarks.search_actors", *few, "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())["summary"]
    assert result["here_s"] > 0
    assert result["actor_s"] == pytest.approx(result["ratio"] * result["here_s"])
    assert result["memory_mib"]["after"] >= result["memory_mib"]["empty"] > 0
