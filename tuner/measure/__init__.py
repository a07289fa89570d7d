"""Measuring: the Builder and Runner interfaces. Implementations that need TVM stand in modules of their own."""

from tuner.measure._base import (
    BASELINES_S,
    FIRST_GPU,
    Builder,
    BuilderLost,
    BuildResult,
    DeviceBusy,
    DeviceFailed,
    DeviceLost,
    Interrupted,
    LibraryFailed,
    NotMeasured,
    Runner,
    RunRequest,
    Turns,
    TurnsRequest,
    WrongDevice,
    never,
)
from tuner.measure.builders.kept import KeptBuilds

__all__ = [
    "BASELINES_S",
    "FIRST_GPU",
    "BuildResult",
    "Builder",
    "BuilderLost",
    "DeviceBusy",
    "DeviceFailed",
    "DeviceLost",
    "Interrupted",
    "KeptBuilds",
    "LibraryFailed",
    "NotMeasured",
    "RunRequest",
    "Runner",
    "Turns",
    "TurnsRequest",
    "WrongDevice",
    "never",
]
