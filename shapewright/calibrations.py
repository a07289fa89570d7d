"""Calibrations of this machine, as `shapewright device calibrate` keeps them for `sw.tune` and `shapewright tune`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright import defaults
from tuner.errors import ShapewrightError
from tuner.measure import never
from tuner.program.job.task import SearchTask
from tuner.program.target import Target, native
from tuner.program.target.calibration import VERSION, Calibration
from tuner.program.target.rates import TYPICAL, Rates

if TYPE_CHECKING:
    from tuner.calibration import LevelRunner

log = logging.getLogger(__name__)

_read: dict[tuple[str, int], Rates] = {}
"""What this process has read of this machine, by its target's fingerprint and threads."""


def calibration_file(target: Target, threads: int, directory: Path | None = None) -> Path:
    """The file of this version's calibration for a target and a number of threads, whether there is one or not."""
    folder = (directory or defaults.data_dir()) / "calibrations"
    return folder / f"{target.fingerprint}-{threads}-v{VERSION}.json"


def kept(target: Target, threads: int, directory: Path | None = None) -> Calibration | None:
    """None where there is none, or none that can be read: it can be made again."""
    try:
        data = json.loads(calibration_file(target, threads, directory).read_bytes())
        calibration = Calibration.from_json(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return calibration if calibration.serves(target, threads) else None


def keep(calibration: Calibration, target: Target, directory: Path | None = None) -> Path:
    """Write it in place of an earlier one; the file. Raises OSError."""
    path = calibration_file(target, calibration.threads, directory)
    path.parent.parent.mkdir(0o700, parents=True, exist_ok=True)
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(calibration.to_json(), indent=1) + "\n")
    fresh.replace(path)
    return path


def rates_here(task: SearchTask, runner: LevelRunner, interrupted: Callable[[], bool] = never) -> Rates:
    """What theory takes for a task whose target is known: what this machine was calibrated to, or else what ``runner``,
    its own device, reads and issues, which takes a second. Typical rates for other targets. Never raises."""
    from tuner.calibration import read_rates  # noqa: PLC0415 - the rules, which other commands need not load

    if (calibration := kept(task.known_target, task.threads)) is not None:
        return calibration.rates
    what = task.known_target.fingerprint, task.threads
    if what[0] != native().fingerprint:
        return TYPICAL
    try:
        if what not in _read:
            _read[what] = read_rates(task, runner, interrupted)
        return _read[what]
    except ShapewrightError as error:
        # A search that needs the device meets the same, and says so.
        log.warning("theory takes typical rates: %s", error)
        return TYPICAL
