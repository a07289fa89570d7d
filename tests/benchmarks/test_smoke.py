"""Every benchmark is loaded and says what it does; small parts of those that need devices and minutes."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import budgets, lanes, readings
from tests.fakes import TASK
from tuner.program.job.jobspec import Budget
from tuner.records import MeasureResult
from tuner.schedule import default_kernel

SCRIPTS = (
    "budgets", "dashboard", "kernels", "lanes", "models", "operators", "overhead", "policies", "readings", "report",
    "search_actors", "service", "theory", "unknown_machine", "workers",
)  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " ".join(str(module.__doc__).split("\n", 1)[0].split()) in said


@pytest.mark.soak
def test_one_job_of_five_layers_on_simulated_devices() -> None:
    row = lanes.run(seed=0, lanes=8, devices=2, trial_s=0.0, budget=Budget(10, None))
    assert (row["devices"], row["lanes"]) == (2, 8)
    assert 0 < row["trials"] <= 10
    assert row["wall_s"] > 0


def test_readings_of_two_devices_are_compared_kernel_by_kernel() -> None:
    kernel, (first, second, *_) = default_kernel(TASK), TASK.instances
    seconds = {(first, "a"): 1.0, (first, "b"): 1.1, (second, "a"): 2.0}
    results = [MeasureResult(kernel, instance, time, device=device) for (instance, device), time in seconds.items()]
    assert readings.differences(results) == [pytest.approx(0.1)]
    rounds = [{"turns": turns, "difference": by, "difference_p90": by, "seconds": 3.0} for turns, by in
              ((True, 0.01), (False, 0.1), (True, 0.03))]  # fmt: skip
    assert readings.summary(rounds)["turns"]["difference"] == pytest.approx(0.02)
    assert readings.summary(rounds)["no_turns"]["seconds"] == 3.0


def test_what_a_command_did_is_told_by_its_events() -> None:
    def event(second: int, kind: str, **data: Any) -> Any:
        return SimpleNamespace(created_at=f"2026-01-01T00:00:{second:02}+00:00", kind=kind, data=data)

    events = [
        event(0, "state"), event(2, "progress", phase="search", trials=3, position=0),
        event(7, "progress", phase="search", trials=5, position=1),
        event(8, "progress", phase="build", trials=5, position=1), event(9, "state"),
    ]  # fmt: skip
    told = budgets._told_by(cast(Any, events))
    assert told == {"silent_s": 5.0, "phases_s": {"start": 2.0, "search": 6.0, "build": 1.0}, "trials": [3, 5]}
