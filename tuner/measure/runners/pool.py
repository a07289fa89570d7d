"""A Runner over several: the requests of its calls are spread over all devices of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.measure._base import BuildResult, DeviceLost, Interrupted, Runner, RunRequest, Turns, TurnsRequest, never
from tuner.measure.runners.work_queue import MAX_DEVICES, Call, Health
from tuner.measure.runners.workers import DISCOVERY_S, DeviceWorkers, Members, Name, Report, no_report
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult

PARTS = 2
"""Parts of a call for each device, about: fewer leave some idle at the end of a call."""
MACHINE_FAILED = (ErrorKind.MACHINE, ErrorKind.DEVICE)

Observe = Callable[[Sequence[MeasureResult]], None]
"""Called with what was measured, of all devices together."""


def not_observed(results: Sequence[MeasureResult]) -> None:
    """An ``Observe`` for callers that keep no account of devices."""


class RunnerPool:
    """Measures on all devices of ``members()`` at once, on each by a runner of its own.

    Whichever device is free takes the next request, of whichever call, so that a slow one holds up nothing but its own.
    What a device was lost or failed over is given to another, once; a device that failed rests while others work. A
    call fails only when all are lost with nothing done. For use
    from several threads.
    """

    def __init__(
        self,
        members: Members,
        report: Report = no_report,
        discovery_s: float = DISCOVERY_S,
        observe: Observe = not_observed,
        should_rest: Callable[[Name], bool] = lambda name: False,
    ) -> None:
        self._members, self._observe = members, observe
        self._workers = DeviceWorkers(members, report, should_rest, discovery_s)

    @property
    def devices(self) -> int:
        return max(1, len(self._members()))

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        call: Call[None, bool] = Call(task, [None], lambda runner, _: True, _unknown_health, None, interrupted)
        self._workers.perform(call)
        if call.lost is not None:
            raise call.lost
        if call.answers == [None]:
            raise Interrupted("the device is no longer wanted")

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        def measured(runner: Runner, request: RunRequest) -> list[MeasureResult]:
            return runner.run(task, [request], interrupted)

        parts = _parts(requests, self.devices)
        built = [part for part in parts if part.build.binary is not None]
        call = Call(task, built, measured, _health_of, _lost_over, interrupted)
        self._workers.perform(call)
        answers = iter(call.answers)
        results: list[MeasureResult] = []
        for part in parts:
            answer = part.not_built() if part.build.binary is None else next(answers)
            if not answer:
                break
            results += answer
        if call.lost is not None and not results:
            raise call.lost
        self._observe(results)
        return results

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        def verified(runner: Runner, point: Mapping[str, int]) -> list[tuple[Mapping[str, int], str]]:
            return runner.verify(task, build, [point], interrupted)

        call = Call(task, dims, verified, _unknown_health, lambda point, error: [(point, str(error))], interrupted)
        self._workers.perform(call)
        if call.lost is not None:
            raise call.lost
        problems: list[tuple[Mapping[str, int], str]] = []
        for answer in call.answers:
            if answer is None:
                raise Interrupted("the verification is no longer wanted")
            problems += answer
        return problems

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        call = Call(task, [instances], lambda runner, at: runner.baselines(task, at), _unknown_health, None, never)
        self._workers.perform(call)
        (answer,) = call.answers
        if answer is None:
            raise call.lost or DeviceLost("no device has measured the baselines")
        return answer

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        def taken(runner: Runner, asked: TurnsRequest) -> Turns:
            return runner.turns(task, asked, interrupted)

        call = Call(task, [request], taken, _unknown_health, None, interrupted)
        self._workers.perform(call)
        (answer,) = call.answers
        if answer is None:
            raise call.lost or Interrupted("the turns are no longer wanted")
        return answer

    def close(self) -> None:
        self._workers.close()


def _parts(requests: Sequence[RunRequest], devices: int) -> list[RunRequest]:
    """The requests, those of many instances in several where that keeps more devices busy.

    Each part is verified again, which takes less than most trials do.
    """
    trials = sum(len(request.instances) for request in requests)
    most = max(1, -(-trials // (PARTS * devices))) if devices > 1 else max(1, trials)
    return [
        RunRequest(request.build, request.instances[start : start + most])
        for request in requests
        for start in range(0, max(1, len(request.instances)), most)
    ]


def _health_of(results: Sequence[MeasureResult]) -> Health:
    problem = next((result.error for result in results if result.error_kind in MACHINE_FAILED), None)
    return any(result.ok for result in results), problem


def _unknown_health(_: object) -> Health:
    return False, None


def _lost_over(request: RunRequest, error: DeviceLost) -> list[MeasureResult]:
    return request.failed(ErrorKind.DEVICE, f"{MAX_DEVICES} devices were lost over it; the last: {error}")
