"""Calibrations of this machine, as `shapewright device calibrate` keeps them for `sw.tune` and `shapewright tune`."""

from __future__ import annotations

import json
from pathlib import Path

from shapewright import defaults
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.program.target.calibration import VERSION, Calibration


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


def at_kept_rates(task: SearchTask) -> SearchTask:
    """A task whose target is known, with the rates that this machine was measured to have, if it was."""
    calibration = kept(task.known_target, task.threads)
    return task if calibration is None else task.at_rates(calibration.rates)
