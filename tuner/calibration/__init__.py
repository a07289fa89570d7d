"""Calibration of a device: its rates, by which theory estimates, measured in place of constants."""

from tuner.calibration.calibrate import CALIBRATION_S, LevelRunner, calibrate, read_rates

__all__ = ["CALIBRATION_S", "LevelRunner", "calibrate", "read_rates"]
