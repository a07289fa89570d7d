"""Measuring: the Builder and Runner interfaces. Implementations that need TVM stand in modules of their own."""

from tuner.measure._base import Builder, BuilderLost, BuildResult, DeviceLost, Runner, RunRequest, WrongDevice
from tuner.measure.kept_builds import KeptBuilds

__all__ = ["BuildResult", "Builder", "BuilderLost", "DeviceLost", "KeptBuilds", "RunRequest", "Runner", "WrongDevice"]
