"""The benchmark of workers: its steps, on real worker processes and simulated devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import workers


def test_each_step_has_a_rate_by_the_devices_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SETTLE_S", 0.0)
    out = tmp_path / "out.json"
    fast = ["--trial-s", "0.05", "--seconds", "0.5", "--workers", "1"]
    workers.main(["--devices", "2", "--jobs", "1", "--trials", "5", *fast, "--json", str(out)])
    document = json.loads(out.read_text())
    one, two = document["steps"]
    assert (one["devices"], one["jobs"], one["linear"]) == (1, 1, 1.0)
    assert (two["devices"], two["jobs"]) == (2, 1)
    assert two["linear"] == pytest.approx(two["trials_per_s"] / (2 * one["trials_per_s"])) or one["trials_per_s"] == 0
    assert two["memory_mib"] > 0
    assert document["cpu"]
