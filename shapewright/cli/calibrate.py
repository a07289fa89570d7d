"""`shapewright device calibrate`: measure this machine for the theory of searches that run on it without a service."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from shapewright import defaults
from shapewright.cli import options
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, quiet_stdout, say
from tuner.errors import InvalidInput


@click.command("calibrate")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of a kernel.")
@click.option("--seconds", type=options.Seconds(), default=60.0, show_default=True, help="What it may take.")
@options.data_dir
@as_json
def device_calibrate(threads: int, seconds: float, data_dir: Path | None, json_output: bool) -> None:
    """Measure this machine once, for `tune` and `sw.tune`.

    Searches here then begin with a theory of this very machine. It takes at most --seconds, less on a machine that does
    nothing else. What was measured is kept in the data directory. Workers measure their devices by themselves.
    """
    began_s = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise InvalidInput("--threads", f"{threads} threads, and this process may use {cores} cores", "at most so many")
    from shapewright.calibrations import keep  # noqa: PLC0415  (keeps --help fast)
    from tuner.calibration import calibrate  # noqa: PLC0415
    from tuner.measure.local import local_tools  # noqa: PLC0415  (TVM)
    from tuner.program.target import native  # noqa: PLC0415

    directory, target = options.private(data_dir or defaults.data_dir()), native()
    say(f"measuring on {threads} thread{'s' * (threads != 1)}, for {seconds:g} s at most")
    with quiet_stdout(), local_tools() as (builder, runner):
        # Loading the compiler counts.
        within_s = seconds - (time.monotonic() - began_s)
        calibration = calibrate(target, threads, builder=builder, runner=runner, within_s=within_s)
    if calibration is None:
        message = f"too little was measured within {seconds:g} s; allow more by --seconds, on an idle machine"
        raise CommandFailed(ExitCode.JOB_FAILED, message)
    path = keep(calibration, target, directory)
    after, before = (100 * error for error in (calibration.error_after, calibration.error_before))
    gain = f"theory is off by {after:.1f} % of the time, {before:.1f} % before"
    text = f"calibrated in {calibration.seconds:.0f} s: {gain}; kept in {path}"
    emit({**calibration.to_json(), "file": str(path)}, json_output, text)
