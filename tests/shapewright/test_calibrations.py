"""Calibrations of this machine: made by a command, kept in the data directory, used by searches without a service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shapewright as sw
from shapewright.calibrations import at_kept_rates, calibration_file, keep, kept
from shapewright.cli.tune import _rates_of
from tests.calibrated import FOUND
from tests.shapewright.conftest import Shapewright
from tuner.measure import never
from tuner.program.target import native
from tuner.program.target.calibration import VERSION, Calibration
from tuner.program.target.rates import TYPICAL, Rates

TASK = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target=native())


def test_what_is_kept_is_used_by_searches_of_its_target_and_threads(data_dir: Path) -> None:
    assert at_kept_rates(TASK).rates == TYPICAL
    path = keep(FOUND, native())
    assert path.is_relative_to(data_dir / "calibrations")
    assert kept(native(), 1) == FOUND
    assert at_kept_rates(TASK).rates == FOUND.rates
    other = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target={"kind": "llvm", "mcpu": "haswell"})
    of_two = sw.SearchTask("dense", {"m": 8, "n": 48, "k": 32}, target=native(), threads=2)
    assert (at_kept_rates(other).rates, at_kept_rates(of_two).rates) == (TYPICAL, TYPICAL)


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
    monkeypatch.setattr("tuner.measure.local.local_tools", no_tools)
    sw.tune(TASK, trials=1)
    keep(FOUND, native())
    sw.tune(TASK, trials=1)
    assert seen == [TYPICAL, FOUND.rates]


def test_the_command_tune_takes_it_unless_it_is_told_not_to(data_dir: Path) -> None:
    keep(FOUND, native())
    assert _rates_of("on")("local", TASK, never, print) == FOUND.rates
    assert _rates_of("off")("local", TASK, never, print) == TYPICAL


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
