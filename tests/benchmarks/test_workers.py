"""The benchmark of workers: its steps, on real worker processes and simulated devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import workers
from benchmarks.worker_path import PathRates


@pytest.mark.soak
def test_each_step_has_a_rate_by_the_devices_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SETTLE_S", 0.0)
    out = tmp_path / "out.json"
    fast = ["--trial-s", "0.05", "--seconds", "0.5", "--workers", "1", "--path-turns", "0"]
    workers.main(["--devices", "2", "--jobs", "1", "--trials", "5", *fast, "--json", str(out)])
    document = json.loads(out.read_text())
    one, two = document["steps"]
    assert (one["devices"], one["jobs"], one["linear"]) == (1, 1, 1.0)
    assert (two["devices"], two["jobs"]) == (2, 1)
    assert two["linear"] == pytest.approx(two["trials_per_s"] / (2 * one["trials_per_s"])) or one["trials_per_s"] == 0
    assert two["memory_mib"] > 0
    assert document["protocol"]["cpu"]
    summary = document["summary"]
    assert (summary["lost"], summary["doubled"]) == (0, 0)
    assert summary["records"] >= max(5, two["trials"])
    assert summary["bare_loop_ratio"] is None


def step(devices: int, linear: float, cpu_cores: float) -> workers.Step:
    return workers.Step(devices, 4, 10, 1.0, 10.0, linear, 0.3, cpu_cores, 100.0, 0.0, 10, 0, 0)


def test_the_summary_names_the_point_where_the_machine_is_full_and_says_why() -> None:
    steps = [step(1, 1.0, 0.1), step(2, 0.95, 0.5), step(4, 0.7, 1.9), step(8, 0.4, 1.9)]
    paths = [PathRates(10, rate, 2.0, rate / 2) for rate in (1.0, 1.8, 2.0)]
    summary = workers.summary_of(steps, paths, cores=2)
    assert (summary["full_at_devices"], summary["bare_loop_ratio"]) == (4, 0.9)
    assert "the processors are full" in str(summary["full_because"])
    waiting = workers.summary_of([step(1, 1.0, 0.1), step(8, 0.7, 0.4)], [], cores=2)
    assert "do not keep 8 devices busy" in str(waiting["full_because"])
    assert workers.summary_of(steps[:2], [], cores=2)["full_at_devices"] is None


def test_the_slope_of_memory_is_per_hour() -> None:
    assert workers.slope_per_h([(0.0, 100.0), (30.0, 101.0), (60.0, 102.0)]) == pytest.approx(120.0)
    assert workers.slope_per_h([(0.0, 100.0)]) == 0.0
