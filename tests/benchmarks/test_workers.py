"""The benchmark of workers: records are what simulated devices did, on a real worker process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import workers


@pytest.mark.soak
def test_every_trial_of_the_devices_is_a_record(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    few = ["--devices", "2", "--jobs", "1", "--trials", "5", "--trial-s", "0.05", "--workers", "1"]
    workers.main([*few, "--json", str(out)])
    document = json.loads(out.read_text())
    (row,), summary = document["rows"], document["summary"]
    assert (row["devices"], row["jobs"]) == (2, 1)
    assert document["protocol"]["cpu"]
    assert (summary["lost"], summary["doubled"]) == (0, 0)
    assert 0 < summary["records"] <= 5
    assert summary["trials_per_s"] == pytest.approx(summary["records"] / row["seconds"])
    assert summary["bare_loop_ratio"] == pytest.approx(row["trials_per_s"] / row["bare_per_s"])
