"""A Runner over several: the requests of a call are spread over all devices of a key."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tuner.errors import ShapewrightError
from tuner.measure._base import (
    BuildResult,
    DeviceBusy,
    DeviceLost,
    Interrupted,
    Runner,
    RunRequest,
    WrongDevice,
    never,
)
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult

DISCOVERY_S, POLL_S = 120.0, 0.5
"""How long a call waits for a first device where there is none: a tracker that was restarted learns of its devices
within seconds."""
IDLE_RELEASE_S = 2.0
"""A device that has nothing left to do is given back after so long, while others still work: they may wait for it."""
SPARE = 2
"""Devices that are asked for each request, where there are more: some may be busy for others."""
PARTS = 2
"""For each device, about: fewer leave some idle at the end of a call."""
MOST_DEVICES = 2
"""That fail, or are lost, over one item before it is given up."""
MACHINE_FAILED = (ErrorKind.MACHINE, ErrorKind.DEVICE)

Name = Any
"""Hashable."""
Members = Callable[[], Mapping[Name, Callable[[], Runner]]]
"""The devices that there are now, by name, each with what makes a runner on it."""
Report = Callable[[Name, str | None], None]
"""Called for each device that failed, with the reason; with None for one that worked."""
Health = tuple[bool, str | None]
"""Whether a device worked, and why its machine failed."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


Observe = Callable[[Sequence[MeasureResult]], None]
"""Called with what was measured, of all devices together."""


def no_report(name: Name, problem: str | None) -> None:
    """A ``Report`` for callers that keep no account of devices."""


def not_observed(results: Sequence[MeasureResult]) -> None:
    """An ``Observe`` of the same."""


class RunnerPool:
    """Measures on all devices of ``members()`` at once, on each by a runner of its own.

    Whichever device is free takes the next request, so that a slow one holds up nothing but its own. What a device was
    lost or failed over is given to another, once; a device that failed is backed off for the call while others work.
    The call fails only when all are lost with nothing done. Not for use from several threads.
    """

    def __init__(
        self,
        members: Members,
        report: Report = no_report,
        discovery_s: float = DISCOVERY_S,
        observe: Observe = not_observed,
        should_rest: Callable[[Name], bool] = lambda name: False,
    ) -> None:
        self._members, self._report, self._discovery_s = members, report, discovery_s
        self._observe, self._should_rest = observe, should_rest
        self._runners: dict[Name, Runner] = {}

    @property
    def devices(self) -> int:
        return max(1, len(self._members()))

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        self._first(interrupted).ready(task, interrupted)

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        def measured(runner: Runner, request: RunRequest) -> list[MeasureResult]:
            return runner.run(task, [request], interrupted)

        parts = _parts(requests, self.devices)
        built = [part for part in parts if part.build.binary is not None]
        work = _WorkQueue(built, measured, _health_of, _lost_over)
        error = self._distribute(work, task, interrupted)
        answers = iter(work.answers)
        results: list[MeasureResult] = []
        for part in parts:
            answer = part.not_built() if part.build.binary is None else next(answers)
            if not answer:
                break
            results += answer
        if error is not None and not results:
            raise error
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

        work = _WorkQueue(dims, verified, _unknown_health, lambda point, error: [(point, str(error))])
        if (error := self._distribute(work, task, interrupted)) is not None:
            raise error
        problems: list[tuple[Mapping[str, int], str]] = []
        for answer in work.answers:
            if answer is None:
                raise Interrupted("the verification is no longer wanted")
            problems += answer
        return problems

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        work = _WorkQueue([instances], lambda runner, at: runner.baselines(task, at), _unknown_health, None)
        error = self._distribute(work, task, never)
        (answer,) = work.answers
        if answer is None:
            raise error or DeviceLost("no device has measured the baselines")
        return answer

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()

    def _first(self, interrupted: Callable[[], bool]) -> Runner:
        return next(iter(self._runners_for(1, self._wait_for_members(interrupted)).values()))

    def _distribute(
        self, work: _WorkQueue[Item, Answer], task: SearchTask, interrupted: Callable[[], bool]
    ) -> ShapewrightError | None:
        """Have the devices work; why they stopped before all was done, if nobody interrupted them."""
        lost: dict[Name, ShapewrightError] = {}
        members = self._wait_for_members(interrupted) if len(work) else {}
        while members and work.left and not interrupted():
            runners = self._runners_for(len(work), members)
            lost |= work.process(runners, task, interrupted, self._report, self._members)
            for name in lost.keys() & self._runners.keys():
                self._runners.pop(name).close()
            members = {name: make for name, make in self._members().items() if name not in lost}
        if not work.left or interrupted():
            return None
        return next(iter(lost.values()), None) or DeviceLost("the devices are gone, or quarantined")

    def _runners_for(self, items: int, members: Mapping[Name, Callable[[], Runner]]) -> Mapping[Name, Runner]:
        """Of these devices those to use for so many items, the ones used last first. What is not used is given back.

        One that should rest is used where all should.
        """
        members = {name: make for name, make in members.items() if not self._should_rest(name)} or members
        for name in [name for name in self._runners if name not in members]:
            self._runners.pop(name).close()
        # One item goes to the device that is at hand: comparisons are made of such calls.
        wanted = 1 if items <= 1 and self._runners else max(1, SPARE * items)
        names = [*self._runners, *(name for name in members if name not in self._runners)]
        for name in names[wanted:]:
            if name in self._runners:
                self._runners.pop(name).close()
        self._runners = {name: self._runners.get(name) or members[name]() for name in names[:wanted]}
        return self._runners

    def _wait_for_members(self, interrupted: Callable[[], bool]) -> Mapping[Name, Callable[[], Runner]]:
        """The devices that there are; waits for a first one."""
        deadline = time.monotonic() + self._discovery_s
        while not (members := self._members()):
            if interrupted():
                raise Interrupted("the device is no longer wanted")
            if time.monotonic() > deadline:
                missing = f"there has been no device for {self._discovery_s:g} s, or none that is not quarantined"
                raise DeviceLost(missing)
            time.sleep(POLL_S)
        return members


class _WorkQueue(Generic[Item, Answer]):
    """Items that several runners take one after another, each in a thread of its own.

    ``health_of`` says of an answer whether the device worked, or why the machine failed over it. ``give_up`` answers an
    item over which two devices were lost; None: others are tried.
    """

    def __init__(
        self,
        items: Sequence[Item],
        do: Callable[[Runner, Item], Answer],
        health_of: Callable[[Answer], Health],
        give_up: Callable[[Item, DeviceLost], Answer] | None,
    ) -> None:
        self.left = deque(enumerate(items))
        self.answers: list[Answer | None] = [None] * len(items)
        self._do, self._health_of, self._give_up = do, health_of, give_up
        self._failed_over: Counter[int] = Counter()
        """By item, devices that were lost or failed over it."""
        self._lock = threading.Lock()
        self._lost: dict[Name, ShapewrightError] = {}
        self._backed_off: set[Name] = set()
        self._working = 0
        self._all_done = threading.Event()

    def __len__(self) -> int:
        return len(self.answers)

    def process(
        self,
        runners: Mapping[Name, Runner],
        task: SearchTask,
        interrupted: Callable[[], bool],
        report: Report,
        members: Members,
    ) -> dict[Name, ShapewrightError]:
        """Let these runners work until nothing is left or none of them can go on; those that were lost, and why.

        Raises what else a runner raises.
        """
        self._lost, self._backed_off, self._working = {}, set(), len(runners)
        self._all_done.clear()

        def work(name: Name, runner: Runner) -> None:
            try:
                # Others may have had it quarantined.
                while self.left and not interrupted() and name in members():
                    # A device first, then an item: who waits for a device holds up nothing.
                    runner.ready(task, lambda: interrupted() or not self.left)
                    went_well = self._take(name, runner, report)
                    if not went_well and len(self._backed_off | self._lost.keys()) < len(runners):
                        # Another device may do better.
                        return
            except (DeviceLost, WrongDevice) as error:
                self._lost[name] = error
                if isinstance(error, DeviceLost) and not isinstance(error, DeviceBusy):
                    report(name, str(error))
            except Interrupted:
                pass
            except BaseException:
                self.left.clear()
                raise
            finally:
                self._wait_for_others(runner)

        with ThreadPoolExecutor(len(runners), thread_name_prefix="device") as threads:
            works = [threads.submit(work, name, runner) for name, runner in runners.items()]
        for each in works:
            each.result()
        return self._lost

    def _take(self, name: Name, runner: Runner, report: Report) -> bool:
        """Do the next item, if there is one; whether the device may take another."""
        try:
            index, item = self.left.popleft()
        except IndexError:
            return True
        try:
            answer = self._do(runner, item)
        except (DeviceBusy, WrongDevice):
            self.left.appendleft((index, item))
            raise
        except DeviceLost as error:
            self._failed_over[index] += 1
            if self._give_up is not None and self._failed_over[index] >= MOST_DEVICES:
                self.answers[index] = self._give_up(item, error)
            else:
                self.left.appendleft((index, item))
            raise
        worked, problem = self._health_of(answer)
        if problem is None:
            self.answers[index] = answer
            if worked:
                report(name, None)
            return True
        report(name, problem)
        self._backed_off.add(name)
        self._failed_over[index] += 1
        if self._failed_over[index] >= MOST_DEVICES:
            self.answers[index] = answer
        else:
            self.left.append((index, item))
        return False

    def _wait_for_others(self, runner: Runner) -> None:
        with self._lock:
            self._working -= 1
            if not self._working:
                self._all_done.set()
        if not self._all_done.wait(IDLE_RELEASE_S):
            runner.close()


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
    return request.failed(ErrorKind.DEVICE, f"{MOST_DEVICES} devices were lost over it; the last: {error}")
