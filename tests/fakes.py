"""A synthetic device behind the interfaces of a real one: latencies are a function of kernel and shape.

The function is far from what theory expects of the same kernel, as a real device is: it has a width of tile of its
own that it likes, pays for padding, for unrolling in a hidden way, and favours big tiles only on large shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuildResult, Interrupted, RunRequest, Turns, TurnsRequest, never
from tuner.measure.timing.turns import Contender, TurnTaking
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL
from tuner.records import NUMPY, Baseline, Baselines, ErrorKind, MeasureResult, Roof
from tuner.schedule.space import MicroKernel
from tuner.search.summary import SearchSummary
from tuner.storage import NewEvent

T = ShapeVar("T", range(1, 129))
V3 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
WIDE = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
# Of a device that hides little of what it streams: several kernels of one set pay there.
RATES = replace(TYPICAL, near_exposed=0.45)
TASK = SearchTask(
    "dense", {"m": T, "n": 96, "k": 32}, (T,), instances=[1, 7, 24, 61, 128], target=WIDE, max_kernels=4
).at_rates(RATES)


def latency_s(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    """Seconds that the synthetic device takes: always the same for the same question."""
    extents = task.workload.axis_sizes(task.workload.dims(shape))
    m, n, k = (extents[axis] for axis in "mnk")
    mr, columns = kernel["mr"], 16 * kernel["nv"]
    rows = m if kernel["tail"] else math.ceil(m / mr) * mr
    work = rows * math.ceil(n / columns) * columns * k
    # Half the speed at tiles of one row, full speed near 24 accumulators, less beyond.
    speed = 1.0 / (1.0 + 0.5 * math.log2(24 / min(24, mr * kernel["nv"])) + 0.15 * max(0, mr * kernel["nv"] - 24))
    quirk = 1.0 + 0.6 * (kernel["ku"] in (1, 8)) + 0.4 * (kernel["ahead"] == 1)
    quirk += 0.02 * math.sqrt(abs(kernel["mb"] - 12))
    return 1e-7 * (1 + 0.3 * kernel["tail"]) + 2e-11 * work / speed * quirk


def _flops(task: SearchTask, shape: Mapping[str, int]) -> int:
    return task.workload.flops(task.workload.dims(shape))


Time = Callable[[SearchTask, MicroKernel, Mapping[str, int]], float]


@dataclass
class FakeClock:
    """A clock that only moves when somebody works."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeBuilder:
    """Builds nothing, in ``build_s`` of the fake clock. ``broken`` says which kernels cannot be built. A library takes
    ``link_s``, and ``build_s`` for each kernel that it has no object of; ``code`` is that of each kernel."""

    clock: FakeClock = field(default_factory=FakeClock)
    build_s: float = 0.0
    link_s: float = 0.0
    code: bytes = b""
    broken: Callable[[MicroKernel], bool] = lambda kernel: False
    built: list[MicroKernel] = field(default_factory=list)

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        self.built += kernels
        self.clock.now_s += self.build_s * len(kernels)
        return [self._build(kernel) for kernel in kernels]

    def _build(self, kernel: MicroKernel) -> BuildResult:
        if self.broken(kernel):
            return BuildResult(kernel, None, self.build_s, ErrorKind.BUILD, "broken on purpose")
        return BuildResult(kernel, b"binary", self.build_s, code=self.code)

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        """A real one."""
        missing = sum(not objects.get(kernel) for kernel in dispatcher.kernels)
        self.clock.now_s += self.link_s + self.build_s * missing
        return build_library(dispatcher, job_id, objects)

    def close(self) -> None:
        pass


@dataclass
class FakeRunner:
    """The synthetic device. ``wrong`` says at which dims a library computes wrongly, when it is verified.

    ``slowdown`` says, of the number of trials so far, by what factor its clock is slower than at its best. ``compared``
    is that number at each measurement of baselines. A verification does ``verify_rate`` operations a second. Samples in
    turns take ``sample_s``, and ``noise`` times as long as they should; ``taken`` has the contenders of each, in order.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    run_s: float = 0.0
    time: Time = latency_s
    crashes: Callable[[MicroKernel], bool] = lambda kernel: False
    wrong: Callable[[Mapping[str, int]], str | None] = lambda dims: None
    slowdown: Callable[[int], float] = lambda trials: 1.0
    numpy_s: Callable[[SearchTask, Mapping[str, int]], float] = lambda task, shape: _flops(task, shape) / 5e10
    compare_s: float = 0.0
    compared: list[int] = field(default_factory=list)
    ran: list[tuple[MicroKernel, WorkloadInstance]] = field(default_factory=list)
    verified: list[list[Mapping[str, int]]] = field(default_factory=list)
    verify_rate: float = float("inf")
    devices: int = 1
    has_numpy: bool = True
    sample_s: float = 0.0
    noise: Callable[[], float] = lambda: 1.0
    taken: list[tuple[str, WorkloadInstance]] = field(default_factory=list)

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        """Always."""

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        """Interrupted between two requests."""
        results: list[MeasureResult] = []
        for number, request in enumerate(requests):
            if number and interrupted():
                break
            results += [self._run(task, request.build, instance) for instance in request.instances]
        return results

    def _run(self, task: SearchTask, build: BuildResult, instance: WorkloadInstance) -> MeasureResult:
        self.ran.append((build.kernel, instance))
        self.clock.now_s += self.run_s
        if build.binary is None:
            return MeasureResult(build.kernel, instance, error_kind=build.error_kind, error=build.error)
        if self.crashes(build.kernel):
            return MeasureResult(build.kernel, instance, error_kind=ErrorKind.CRASH, error="signal 11")
        slower = self.slowdown(len(self.ran))
        result = self.time(task, build.kernel, instance.shape) * slower
        return MeasureResult(
            build.kernel, instance, result, (result,), anchor_s=2e-6 * slower, device="fake", run_s=self.run_s
        )

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        """NumPy does what ``numpy_s`` says, and ``compare_s`` pass meanwhile."""
        self.compared.append(len(self.ran))
        self.clock.now_s += self.compare_s
        slower = self.slowdown(len(self.ran))
        points = [
            Baseline(NUMPY, instance, self.numpy_s(task, instance.shape) * slower, 2e-6 * slower)
            for instance in instances
        ]
        return Baselines(tuple(points), Roof(1e11, 1e10, 2e-6 * slower))

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        """By the code that takes them on a real device. Interrupted at any sample."""

        def contender(name: str, instance: WorkloadInstance, latency: Callable[[], float]) -> Contender:
            def sample(number: int) -> float:
                self.taken.append((name, instance))
                self.clock.now_s += self.sample_s
                if interrupted():
                    raise Interrupted("no longer wanted")
                return latency() * self.slowdown(len(self.taken)) * self.noise()

            return sample

        def contenders(at: int, instance: WorkloadInstance) -> list[Contender | None]:
            result: list[Contender | None] = []
            for places in request.runs:
                place = places[at]
                if place is None:
                    result.append(None)
                    continue
                kernel = request.builds[place].kernel
                result.append(contender(kernel.id, instance, partial(self.time, task, kernel, instance.shape)))
            if request.with_numpy and not self.has_numpy:
                result.append(None)
            elif request.with_numpy:
                result.append(contender(NUMPY, instance, partial(self.numpy_s, task, instance.shape)))
            return result

        blocks = [contenders(at, instance) for at, instance in enumerate(request.instances)]
        anchor = lambda: 2e-6 * self.slowdown(len(self.taken))  # noqa: E731
        return TurnTaking(blocks, anchor, request.limit_s, self.clock).run()

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        self.verified.append(list(dims))
        self.clock.now_s += sum(map(task.workload.work, dims)) / self.verify_rate
        return [(values, problem) for values in dims if (problem := self.wrong(values)) is not None]

    def close(self) -> None:
        pass


@dataclass
class FakeRecorder:
    """Keeps everything that a search records, in order."""

    results: list[MeasureResult] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    spent_s: list[float] = field(default_factory=list)
    summaries: list[SearchSummary] = field(default_factory=list)
    compared: list[Baselines] = field(default_factory=list)

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: SearchSummary
    ) -> None:
        self.results += results
        self.events += events
        self.spent_s.append(spent_s)
        self.summaries.append(summary)

    def record_baselines(self, baselines: Baselines) -> None:
        self.compared.append(baselines)

    def progress(self, phase: str) -> list[SearchSummary]:
        told = [SearchSummary.from_json(event.data) for event in self.events if event.kind == "progress"]
        return [summary for summary in told if summary.phase == phase]


def measured(task: SearchTask, kernel: MicroKernel, *instances: WorkloadInstance) -> list[MeasureResult]:
    """What the synthetic device would answer."""
    return [MeasureResult(kernel, instance, latency_s(task, kernel, instance.shape)) for instance in instances]
