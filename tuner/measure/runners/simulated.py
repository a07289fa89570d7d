"""Simulated devices: latencies by a model with a seed, and faults on request, behind Builder and Runner.

For what cannot be had: hundreds of devices, and some that fail on demand. Nothing is compiled and nothing is computed.
"""

from __future__ import annotations

import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles, package
from tuner.measure._base import BuildResult, DeviceLost, Interrupted, RunRequest, Turns, TurnsRequest, never, share_ends
from tuner.measure.runners.pool import Observe, RunnerPool, not_observed
from tuner.measure.timing.turns import TURNS
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NUMPY, Baseline, Baselines, ErrorKind, MeasureResult, Roof
from tuner.schedule import default_kernel, estimate_s, extents_of
from tuner.schedule.space import MicroKernel

ANCHOR_S = 1e-5
SPREAD = 0.3
"""Standard deviation of the logarithm of what a kernel takes, beside what theory expects of it."""
DEVICE_SPREAD, NOISE = 0.005, 0.01
"""Relative spread of speed between devices, and of the readings of one device, which are only ever slower."""
SAMPLES = 3
LIMIT_S = 2.0
HOLD_S = 5.0
"""The time after which a device is given up, between two candidates: others may be waiting for it."""
ASK_EVERY_S = 0.1
WAIT_S = 120.0
SLOWER_NUMPY = 1.5


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. ``crashing``, ``hanging`` and ``wrong``: shares of the kernels, which always do; ``silent``: how
    many of the devices stop answering over every candidate; ``throttled``: how many take ``slowdown`` times as long as
    the others; ``delay_s``: by how much a trial may be late."""

    crashing: float = 0.0
    hanging: float = 0.0
    wrong: float = 0.0
    silent: int = 0
    throttled: int = 0
    slowdown: float = 1.5
    delay_s: float = 0.0

    def of(self, kernel: MicroKernel, seed: int) -> ErrorKind | None:
        draw = _random(seed, "fault", kernel.id).random()
        for share, kind in (
            (self.crashing, ErrorKind.CRASH),
            (self.hanging, ErrorKind.RUN_TIMEOUT),
            (self.wrong, ErrorKind.WRONG),
        ):
            if draw < share:
                return kind
            draw -= share
        return None


Model = Callable[[SearchTask, MicroKernel, Mapping[str, int]], float]
"""The time of a kernel at a shape, in seconds."""


def theory(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    return float(estimate_s(task, [kernel], extents_of(task.workload, [shape]))[0, 0])


Ran = Callable[[SearchTask, Sequence[MeasureResult]], None]
"""Told of every trial that a device did, by the thread that waited for it."""


def nobody(task: SearchTask, results: Sequence[MeasureResult]) -> None:
    """A ``Ran`` of those who do not count."""


class Fleet:
    """``size`` devices under one key, each handed out to one user at a time. A trial takes ``trial_s``, one that hangs
    ``limit_s``; what is measured is what ``model`` says, times what is a kernel's own, of which ``spread`` is the
    standard deviation of the logarithm. ``name`` begins the ids of the devices; ``ran`` keeps account of what they did.
    For use from several threads."""

    def __init__(
        self,
        size: int,
        *,
        name: str = "simulated",
        seed: int = 0,
        trial_s: float = 0.0,
        limit_s: float = LIMIT_S,
        faults: Faults | None = None,
        model: Model = theory,
        ran: Ran = nobody,
        spread: float = SPREAD,
    ) -> None:
        self.name = name
        self.size, self.seed, self.trial_s, self.limit_s = size, seed, trial_s, limit_s
        self.faults, self.model, self.ran, self.spread = faults or Faults(), model, ran, spread
        self.busy_s = 0.0
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(size):
            self._free.put(number)

    def runner(self, observe: Observe = not_observed) -> RunnerPool:
        """A runner on all of its devices."""
        members = {number: lambda: SimulatedRunner(self) for number in range(self.size)}
        return RunnerPool(lambda: members, observe=observe)

    def take(self, interrupted: Callable[[], bool], wait_s: float = WAIT_S) -> int:
        """A device that is free. Raises DeviceLost, Interrupted."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return self._free.get(timeout=ASK_EVERY_S)
            except queue.Empty:
                if interrupted():
                    raise Interrupted("the device is no longer wanted") from None
                if time.monotonic() > deadline:
                    raise DeviceLost(f"no simulated device was free within {wait_s:g} s") from None

    def give(self, device: int) -> None:
        self._free.put(device)

    def worked(self, seconds: float) -> None:
        with self._lock:
            self.busy_s += seconds

    def latency_s(self, task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        """The latency that the model gives, times a factor of the kernel's own."""
        return self.model(task, kernel, shape) * math.exp(self.spread * _random(self.seed, kernel.id).gauss())

    def readings(self, task: SearchTask, request: RunRequest, device: int, rng: random.Random) -> list[MeasureResult]:
        """The results of a device: the kernel's latency, times a factor of the device's own, and noise."""
        kernel, speed = request.build.kernel, 1 + DEVICE_SPREAD * _random(self.seed, "device", device).gauss()
        speed *= self.faults.slowdown if device < self.faults.throttled else 1.0
        result = []
        for at in request.instances:
            expected_s = self.latency_s(task, kernel, at.shape) * speed
            samples = [expected_s * (1 + NOISE * abs(rng.gauss())) for _ in range(SAMPLES)]
            latency_s = statistics.median(samples)
            result.append(MeasureResult(kernel, at, latency_s, tuple(samples), anchor_s=ANCHOR_S * speed))
        return result


class SimulatedRunner:
    """One device of a fleet at a time. Not for use from several threads."""

    devices = 1

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._device: int | None = None
        self._since_s = 0.0

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        self._open(interrupted)

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        results: list[MeasureResult] = []
        try:
            for request in requests:
                results += self._measure(task, request, interrupted)
        except Interrupted:
            pass
        return results

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        self._open(interrupted)
        fault = self._fleet.faults.of(build.kernel, self._fleet.seed)
        self._work(self._fleet.limit_s if fault is ErrorKind.RUN_TIMEOUT else 0.0, interrupted)
        return [(values, f"simulated: {fault.value}") for values in dims] if fault else []

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        self._open(never)
        points = [Baseline(NUMPY, at, _numpy_s(task, at), ANCHOR_S) for at in instances]
        return Baselines(tuple(points), Roof(1e11, 1e10, ANCHOR_S))

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        device, fleet = self._open(interrupted), self._fleet
        rng = _random(fleet.seed, device, "turns", time.monotonic_ns())

        def times(at: int, instance: WorkloadInstance) -> list[float | None]:
            places = [run[at] for run in request.runs]
            kernels = [None if place is None else request.builds[place].kernel for place in places]
            expected = [None if each is None else fleet.latency_s(task, each, instance.shape) for each in kernels]
            expected += [_numpy_s(task, instance)] if request.with_numpy else []
            return [None if each is None else each * (1 + NOISE * abs(rng.gauss())) for each in expected]

        turns = [tuple(tuple(times(at, each)) for at, each in enumerate(request.instances)) for _ in range(TURNS)]
        anchors_s = tuple((ANCHOR_S,) * len(request.instances) for _ in range(TURNS))
        return Turns(tuple(turns), anchors_s, device=f"{fleet.name}-{device}")

    def close(self) -> None:
        if self._device is not None:
            self._fleet.give(self._device)
            self._device = None

    def _open(self, interrupted: Callable[[], bool]) -> int:
        if self._device is not None and time.monotonic() - self._since_s > HOLD_S:
            self.close()
        if self._device is None:
            self._device, self._since_s = self._fleet.take(interrupted), time.monotonic()
        return self._device

    def _measure(self, task: SearchTask, request: RunRequest, interrupted: Callable[[], bool]) -> list[MeasureResult]:
        fleet, build = self._fleet, request.build
        if build.binary is None:
            return request.not_built()
        device, fault = self._open(interrupted), fleet.faults.of(build.kernel, fleet.seed)
        if device < fleet.faults.silent:
            self._work(fleet.limit_s, interrupted)
            self.close()
            raise DeviceLost(f"simulated device {device} does not answer")
        run_s = fleet.limit_s if fault is ErrorKind.RUN_TIMEOUT else fleet.trial_s * len(request.instances)
        rng = _random(fleet.seed, device, build.kernel.id, time.monotonic_ns())
        self._work(run_s + rng.random() * fleet.faults.delay_s, interrupted)
        answers = (
            request.failed(fault, f"simulated: {fault.value}") if fault else fleet.readings(task, request, device, rng)
        )
        name, share_s = f"{fleet.name}-{device}", run_s / max(1, len(answers))
        ended_s = share_ends(len(answers), share_s)
        results = [
            replace(answer, device=name, build_s=build.build_s, run_s=share_s, ended_s=end_s)
            for answer, end_s in zip(answers, ended_s, strict=True)
        ]
        fleet.ran(task, results)
        return results

    def _work(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Let the time pass. Raises Interrupted."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if interrupted():
                raise Interrupted("the answer is no longer wanted")
            time.sleep(min(left_s, ASK_EVERY_S))
        self._fleet.worked(seconds)


@dataclass(frozen=True, slots=True)
class SimulatedBuilder:
    """Compiles nothing, in ``build_s`` for each kernel."""

    build_s: float = 0.0

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        time.sleep(self.build_s * len(kernels))
        return [BuildResult(kernel, b"simulated", self.build_s) for kernel in kernels]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        """Everything but machine code."""
        return package(dispatcher, b"simulated", "{}", {}, job_id)

    def close(self) -> None:
        """Nothing to end."""


def _numpy_s(task: SearchTask, at: WorkloadInstance) -> float:
    return SLOWER_NUMPY * theory(task, default_kernel(task), at.shape)


def _random(*seed: object) -> random.Random:
    """Always the same for the same seed, in every process."""
    return random.Random(repr(seed))
