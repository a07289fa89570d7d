"""Calibrations of this machine: made by a command, kept in the data directory, used by searches without a service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import shapewright as sw
from shapewright import calibrations
from shapewright.calibrations import calibration_file, keep, kept, rates_here
from shapewright.cli.tune import LocalTools, _rates_of
from tests.calibrated import FOUND
from tests.shapewright.conftest import Shapewright
from tuner.calibration import LevelRunner
from tuner.measure import DeviceFailed, DeviceLost, never
from tuner.program.target import native
from tuner.program.target.calibration import VERSION, Calibration, Level, Levels
from tuner.program.target.rates import TYPICAL, Rates

TASK = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target=native())
OTHER = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target={"kind": "llvm", "mcpu": "haswell"})
LEVELS = Levels(1e11, (Level("L3", 2**24, 20e9), Level("memory", 2**26, 10e9)), 2e9)


class Device:
    """A runner that reads caches; ``error`` is raised in place of what it reads."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, 0

    def levels(self, task: sw.SearchTask, interrupted: Any = never) -> Levels:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return LEVELS

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrations, "_read", {})


def rates(task: sw.SearchTask, device: Device | None = None) -> Rates:
    return rates_here(task, cast("LevelRunner", device or Device(DeviceFailed("it reads nothing"))))


def test_what_is_kept_is_used_by_searches_of_its_target_and_threads(data_dir: Path) -> None:
    assert rates(TASK) == TYPICAL
    path = keep(FOUND, native())
    assert path.is_relative_to(data_dir / "calibrations")
    assert kept(native(), 1) == FOUND
    assert rates(TASK) == FOUND.rates
    of_two = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target=native(), threads=2)
    assert (rates(OTHER), rates(of_two)) == (TYPICAL, TYPICAL)


def test_a_machine_that_is_not_calibrated_is_read_once(data_dir: Path) -> None:
    device = Device()
    found = rates(TASK, device)
    assert found.clock_hz == LEVELS.clock_hz
    assert found.l3_bytes == pytest.approx(20e9 / 2e9)
    assert found.l2_bytes == TYPICAL.l2_bytes, "what was not read is typical"
    assert rates(TASK, device) == found
    assert rates(OTHER, device) == TYPICAL, "it is no device of that target"
    assert device.asked == 1


@pytest.mark.parametrize("error", [DeviceFailed("it reads nothing"), DeviceLost("it is gone")])
def test_a_device_that_cannot_be_read_has_typical_rates_and_the_log_says_so(
    data_dir: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert rates(TASK, Device(error)) == TYPICAL
    assert str(error) in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(replace(FOUND, version=VERSION + 1).to_json())])
def test_what_cannot_be_used_is_as_if_it_were_not_there(data_dir: Path, text: str) -> None:
    keep(FOUND, native())
    calibration_file(native(), 1).write_text(text)
    assert kept(native(), 1) is None


def test_tune_in_this_process_takes_what_is_kept(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Rates] = []

    def tune(task: sw.SearchTask, *given: Any, **named: Any) -> Any:
        seen.append(task.rates)
        return None

    monkeypatch.setattr("shapewright.session.tune", tune)
    monkeypatch.setattr("tuner.measure.local.local_tools", only_a_device)
    sw.tune(TASK, trials=1)
    sw.tune(TASK, trials=1, calibrated=False)
    keep(FOUND, native())
    sw.tune(TASK, trials=1)
    assert (seen[0].clock_hz, *seen[1:]) == (LEVELS.clock_hz, TYPICAL, FOUND.rates)


def test_the_command_tune_takes_it_unless_it_is_told_not_to(data_dir: Path) -> None:
    keep(FOUND, native())
    assert _rates_of("on", Tools())("local", TASK, never, print) == FOUND.rates
    assert _rates_of("off", Tools())("local", TASK, never, print) == TYPICAL


def test_the_command_tune_reads_a_machine_that_is_not_calibrated(data_dir: Path) -> None:
    assert _rates_of("on", Tools())("local", TASK, never, print).clock_hz == LEVELS.clock_hz


class Tools(LocalTools):
    def __init__(self) -> None:
        pass

    def first(self) -> Any:
        return Device()


@contextmanager
def only_a_device(_gpu: int | None) -> Iterator[tuple[None, Device]]:
    yield None, Device()


@contextmanager
def no_tools() -> Iterator[tuple[None, None]]:
    yield None, None


def calibrated(monkeypatch: pytest.MonkeyPatch, found: Calibration | None) -> list[tuple[Any, ...]]:
    """What the command asks for; ``found`` is what it gets."""
    asked = []

    def calibrate(target: Any, threads: int, *, builder: Any, runner: Any, within_s: float) -> Calibration | None:
        asked.append((target, threads, within_s))
        return found

    monkeypatch.setattr("tuner.calibration.calibrate", calibrate)
    monkeypatch.setattr("tuner.measure.local.local_tools", no_tools)
    return asked


def test_the_command_keeps_what_it_measured(
    shapewright: Shapewright, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = calibrated(monkeypatch, FOUND)
    document = shapewright("device", "calibrate", "--seconds", 30, "--json").json
    ((target, threads, within_s),) = asked
    # What the command took to start counts.
    assert (target, threads) == (native(), 1)
    assert 0 < within_s <= 30
    assert document["file"] == str(calibration_file(native(), 1))
    assert Calibration.from_json(document) == FOUND == kept(native(), 1)
    text = shapewright("device", "calibrate").out
    assert "5.0 % of the time, 20.0 % before" in text
    assert document["file"] in text


def test_the_command_says_what_to_do_where_too_little_was_measured(
    shapewright: Shapewright, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(monkeypatch, None)
    ran = shapewright("device", "calibrate", "--json")
    assert ran.code == 1
    assert "--seconds" in ran.error["message"]
    assert kept(native(), 1) is None


def test_more_threads_than_cores_are_refused(shapewright: Shapewright) -> None:
    ran = shapewright("device", "calibrate", "--threads", len(os.sched_getaffinity(0)) + 1, "--json")
    assert ran.code == 2
    assert ran.error["field"] == "--threads"
