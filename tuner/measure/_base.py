"""The two halves of a measurement behind interfaces: a Builder compiles candidates, a Runner times them on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.errors import ShapewrightError
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult
from tuner.rules.space import MicroKernel

BASELINES_S = 2.0
"""What baselines may take, about."""


class WrongDevice(ShapewrightError):
    """The device is not of the task's target. Another try will find the same."""


class DeviceLost(ShapewrightError):
    """The device, or the tracker that hands it out, cannot be reached. Whoever measures may try again later."""


class DeviceFailed(ShapewrightError):
    """The device's process ended, or was ended, over something that is no candidate. The device itself goes on."""


class BuilderLost(ShapewrightError):
    """What a builder builds on has died or does not answer. No candidate is to blame: try again with a new builder."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A compiled candidate (the bytes of a shared object), or why there is none."""

    kernel: MicroKernel
    binary: bytes | None
    build_s: float
    error_kind: ErrorKind | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run one compiled candidate on some instances, after verifying it on a small ragged one."""

    build: BuildResult
    instances: tuple[WorkloadInstance, ...]


class Builder(Protocol):
    """Compiles candidates, several at once. A candidate that cannot be built is a result, never an exception."""

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """One result for each kernel, in order. No build outlives the builder's own time limit."""

    def close(self) -> None:
        """End every process the builder started."""


class Runner(Protocol):
    """Times candidates on one device, one at a time.

    A candidate that crashes, hangs or computes wrongly is a result with an error kind; the device is free again within
    the runner's time limit. Raises DeviceLost only if the device itself cannot be reached any more.
    """

    def run(self, task: SearchTask, requests: Sequence[RunRequest]) -> list[MeasureResult]:
        """For each request one result per instance, in order."""

    def verify(
        self, task: SearchTask, build: BuildResult, dims: Sequence[Mapping[str, int]]
    ) -> list[tuple[Mapping[str, int], str]]:
        """Check a build (a candidate or a whole library) at these values of the dynamic dims, each with a guard region.

        What is wrong, and where; empty if nothing is. A crash or a hang counts as wrong at the dims it happened at.
        """

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        """The device's roof, and what NumPy takes at these instances: at those that BASELINES_S have room for.

        No instances where the task has more than one thread, since NumPy has one. Raises DeviceFailed if the device
        cannot do it, or not in time.
        """

    def close(self) -> None:
        """Give the device back."""
