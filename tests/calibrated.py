"""A calibration of this machine that nobody had to measure."""

from __future__ import annotations

from tuner.program.target import native
from tuner.program.target.calibration import VERSION, Calibration, Level, Levels
from tuner.program.target.rates import Rates

FOUND = Calibration(
    VERSION, 1, native().fingerprint, Rates(clock_hz=3.1e9), Levels(1.3e11, (Level("L1", 24576, 2.3e11),)), 250, 0.2,
    0.05, 30.0, "2026-11-23T13:56:24+00:00",
)  # fmt: skip
