"""Measuring: the Builder and Runner interfaces. Implementations that need TVM stand in modules of their own."""

from tuner.measure._base import Builder, BuilderLost, BuildResult, DeviceLost, Runner, RunRequest, WrongDevice

__all__ = ["BuildResult", "Builder", "BuilderLost", "DeviceLost", "RunRequest", "Runner", "WrongDevice"]
