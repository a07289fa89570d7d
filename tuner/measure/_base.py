"""The two halves of a measurement behind interfaces: a Builder compiles candidates, a Runner times them on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.blas import Blas
from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult
from tuner.schedule.space import MicroKernel

FIRST_GPU = 0
"""The GPU of a search in this process, of those that the driver shows it: CUDA_VISIBLE_DEVICES says which."""
BASELINES_S = 2.0
"""The time that baselines may take, about."""


class WrongDevice(ShapewrightError):
    """The device is not of the task's target. Another try will find the same."""


class NotMeasured(WrongDevice):
    """The device is of another kind than the task's target: what needs none can do without."""


class DeviceLost(ShapewrightError):
    """The device, or the tracker that hands it out, cannot be reached. Whoever measures may try again later."""


class DeviceBusy(DeviceLost):
    """Nobody handed the device out in time: others use it, or the tracker is away. It says nothing of the device."""


class DeviceFailed(ShapewrightError):
    """The device's process ended, or was ended, over something that is no candidate. The device itself goes on."""


class Interrupted(ShapewrightError):
    """Whoever measures no longer wants the answer; what was running is killed."""


def never() -> bool:
    """An ``interrupted`` of whoever always waits for the answer."""
    return False


def share_ends(count: int, share_s: float) -> list[float]:
    """When each of ``count`` instances was done, on the monotonic clock: one after another, the last of them now."""
    now_s = time.monotonic()
    return [now_s - share_s * (count - 1 - index) for index in range(count)]


class LibraryFailed(ShapewrightError):
    """The compiler cannot build a library of kernels that it has built one by one."""


class BuilderLost(ShapewrightError):
    """What a builder builds on has died or does not answer. No candidate is to blame: try again with a new builder."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A compiled candidate (the bytes of a shared object), or why there is none.

    ``code``: the object file that a library of its kernel is linked from; empty where the builder has none.
    """

    kernel: MicroKernel
    binary: bytes | None
    build_s: float
    error_kind: ErrorKind | None = None
    error: str = ""
    code: bytes = b""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run one compiled candidate on some instances, after verifying it on a small ragged one."""

    build: BuildResult
    instances: tuple[WorkloadInstance, ...]

    def failed(self, kind: ErrorKind, error: str) -> list[MeasureResult]:
        """This failure as the result at each instance."""
        build = self.build
        return [
            MeasureResult(build.kernel, instance, error_kind=kind, error=error, build_s=build.build_s)
            for instance in self.instances
        ]

    def not_built(self) -> list[MeasureResult]:
        """Its results where there is nothing to run."""
        return self.failed(self.build.error_kind or ErrorKind.BUILD, self.build.error)


@dataclass(frozen=True, slots=True)
class TurnsRequest:
    """Time builds in turns at some instances. ``runs``: for each contender the place of its build in ``builds``, by
    instance; None: it does not run there. A library is the build of each kernel that it runs. ``with_numpy``: NumPy's
    products are the last contender, where the program has some and the task one thread. It takes ``limit_s``, about.
    """

    instances: tuple[WorkloadInstance, ...]
    builds: tuple[BuildResult, ...]
    runs: tuple[tuple[int | None, ...], ...]
    with_numpy: bool
    limit_s: float


@dataclass(frozen=True, slots=True)
class Turns:
    """``seconds[turn][instance][contender]`` of a call; None where the contender was not to run. ``anchors_s`` is of
    each block, by turn and instance: the slower of its two. ``retaken`` blocks were taken again, ``disturbed`` stayed
    slow. ``blas`` is NumPy's on the device, ``device`` its id."""

    seconds: tuple[tuple[tuple[float | None, ...], ...], ...]
    anchors_s: tuple[tuple[float, ...], ...]
    retaken: int = 0
    disturbed: int = 0
    blas: Blas | None = None
    device: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "anchors_s": self.anchors_s,
            "retaken": self.retaken,
            "disturbed": self.disturbed,
            "blas": self.blas.to_json() if self.blas else None,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], device: str | None = None) -> Turns:
        return Turns(
            tuple(tuple(map(tuple, turn)) for turn in data["seconds"]),
            tuple(map(tuple, data["anchors_s"])),
            int(data["retaken"]),
            int(data["disturbed"]),
            Blas.from_json(data["blas"]) if data.get("blas") else None,
            device,
        )


class Builder(Protocol):
    """Compiles candidates, several at once. A candidate that cannot be built is a result, never an exception."""

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """One result for each kernel, in order. No build outlives the builder's own time limit."""

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        """Link a dispatcher with its kernels, in a process that may die of it.

        ``objects``: the ``code`` of kernels that were built; the others are compiled. Raises LibraryFailed if it cannot
        be made, or not in time, and BuilderLost.
        """

    def close(self) -> None:
        """End every process the builder started."""


class Runner(Protocol):
    """Times candidates on a device, one at a time, or on several at once.

    A candidate that crashes, hangs or computes wrongly is a result with an error kind; the device is free again within
    the runner's time limit. Raises DeviceLost only if no device can be reached any more, and NotMeasured where all of
    them are of another kind than the task's target.

    ``interrupted`` is asked several times a second. Once it is true, what is running is killed within seconds.
    """

    @property
    def devices(self) -> int:
        """How many candidates it times at once: enough requests in a call keep all of its devices busy."""

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        """Return once a device is available. Raises DeviceLost, WrongDevice, Interrupted."""

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        """One result per instance of each request, in order; of an interrupted call those of the first requests, which
        were done by then."""

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        """Check a build (a candidate or a whole library) at these values of the dynamic dims, each with a guard region.

        What is wrong, and where; empty if nothing is. A crash or a hang counts as wrong at the dims it happened at.
        Raises Interrupted.
        """

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        """The device's roof, and what NumPy takes at these instances: at those that BASELINES_S have room for.

        No instances where the task has more than one thread, since NumPy has one. Raises DeviceFailed if the device
        cannot do it, or not in time.
        """

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        """Time contenders in turns, all on one device. Nothing is verified: what is timed was.

        Raises DeviceFailed if a contender fails or the device cannot take turns, DeviceLost, Interrupted.
        """

    def close(self) -> None:
        """Give the device back."""
