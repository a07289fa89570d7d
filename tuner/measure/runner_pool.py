"""A Runner over several: the requests of a call are spread over all devices of a key."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tuner.measure._base import BuildResult, DeviceLost, Interrupted, Runner, RunRequest, never
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult

APPEAR_S, LOOK_S = 120.0, 0.5
"""How long a call waits for a first device where there is none: a tracker that was restarted learns of its devices
within seconds."""
GIVE_BACK_S = 2.0
"""A device that has nothing left to do is given back after so long, while others still work: they may wait for it."""
SPARE = 2
"""Devices that are asked for each request, where there are more: some may be busy for others."""
MACHINE_FAILED = (ErrorKind.MACHINE, ErrorKind.DEVICE)

Name = Any
"""Hashable."""
Members = Callable[[], Mapping[Name, Callable[[], Runner]]]
"""The devices that there are now, by name, each with what makes a runner on it."""
Told = Callable[[Name, str | None], None]
"""Told of each device that failed, with the reason; with None, that it did not."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def tell_nobody(name: Name, problem: str | None) -> None:
    """A ``Told`` of whoever keeps no account of devices."""


class RunnerPool:
    """Measures on all devices of ``members()`` at once, on each by a runner of its own.

    Whichever device is free takes the next request, so that a slow one holds up nothing but its own. What a device
    failed over is given to another, once; the call fails only when all are lost. Not for use from several threads.
    """

    def __init__(self, members: Members, told: Told = tell_nobody, appear_s: float = APPEAR_S) -> None:
        self._members, self._told, self._appear_s = members, told, appear_s
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

        shared = _Shared(requests, measured, _machine_failure, self._told)
        results: list[MeasureResult] = []
        for answer in self._spread(shared, task, interrupted):
            if not answer:
                break
            results += answer
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

        shared = _Shared(dims, verified, lambda _: None, self._told)
        problems: list[tuple[Mapping[str, int], str]] = []
        for answer in self._spread(shared, task, interrupted):
            if answer is None:
                raise Interrupted("the verification is no longer wanted")
            problems += answer
        return problems

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        return self._first(never).baselines(task, instances)

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()

    def _first(self, interrupted: Callable[[], bool]) -> Runner:
        return next(iter(self._runners_for(1, self._present(interrupted)).values()))

    def _spread(
        self, shared: _Shared[Item, Answer], task: SearchTask, interrupted: Callable[[], bool]
    ) -> Sequence[Answer | None]:
        """As ``_Shared.answers_of``, on devices that were not lost in this call while there is one."""
        lost: set[Name] = set()
        members = self._present(interrupted)
        while True:
            runners = self._runners_for(len(shared), members)
            try:
                return shared.answers_of(runners, task, interrupted)
            except DeviceLost:
                lost |= runners.keys()
                members = {name: make for name, make in self._members().items() if name not in lost}
                if not members:
                    raise

    def _runners_for(self, items: int, members: Mapping[Name, Callable[[], Runner]]) -> Mapping[Name, Runner]:
        """Of these devices those to use for so many items, the ones used last first. What is not used is given back."""
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

    def _present(self, interrupted: Callable[[], bool]) -> Mapping[Name, Callable[[], Runner]]:
        """The devices that there are; waits for a first one."""
        deadline = time.monotonic() + self._appear_s
        while not (members := self._members()):
            if interrupted():
                raise Interrupted("the device is no longer wanted")
            if time.monotonic() > deadline:
                raise DeviceLost(f"there has been no device for {self._appear_s:g} s, or none that is not quarantined")
            time.sleep(LOOK_S)
        return members


class _Shared(Generic[Item, Answer]):
    """Items that several runners take one after another, each in a thread of its own.

    ``failure`` says of an answer why the machine failed over it, if it did.
    """

    def __init__(
        self,
        items: Sequence[Item],
        do: Callable[[Runner, Item], Answer],
        failure: Callable[[Answer], str | None],
        told: Told,
    ) -> None:
        self._left = deque(enumerate(items))
        self._do, self._failure, self._told = do, failure, told
        self._answers: list[Answer | None] = [None] * len(items)
        self._given_back: set[int] = set()
        self._lost: dict[Name, DeviceLost] = {}
        self._lock = threading.Lock()
        self._working = 0
        self._all_done = threading.Event()

    def __len__(self) -> int:
        return len(self._answers)

    def answers_of(
        self, runners: Mapping[Name, Runner], task: SearchTask, interrupted: Callable[[], bool]
    ) -> Sequence[Answer | None]:
        """In the order of the items, None for what was not done before an interruption.

        Raises DeviceLost if all runners lost their devices, and what else a runner raises.
        """
        left = dict(runners)
        while self._left and not interrupted():
            self._working = len(left)
            self._all_done.clear()
            with ThreadPoolExecutor(len(left), thread_name_prefix="device") as threads:
                works = [threads.submit(self._work, name, left[name], task, interrupted) for name in left]
            for work in works:
                work.result()
            # What was given back may have come when the others had found nothing left to do.
            left = {name: runner for name, runner in left.items() if name not in self._lost}
            if not left:
                raise next(iter(self._lost.values()))
        return self._answers

    def _work(self, name: Name, runner: Runner, task: SearchTask, interrupted: Callable[[], bool]) -> None:
        """Take items while there are any."""
        try:
            while self._left and not interrupted():
                # A device first, then an item: who waits for a device holds up nothing.
                runner.ready(task, lambda: interrupted() or not self._left)
                self._take(name, runner)
        except DeviceLost as error:
            self._lost[name] = error
            self._told(name, str(error))
        except Interrupted:
            pass
        except BaseException:
            self._left.clear()
            raise
        finally:
            self._wait_for_others(runner)

    def _take(self, name: Name, runner: Runner) -> None:
        try:
            index, item = self._left.popleft()
        except IndexError:
            return
        try:
            answer = self._do(runner, item)
        except DeviceLost:
            self._left.appendleft((index, item))
            raise
        problem = self._failure(answer)
        self._told(name, problem)
        if problem is not None and index not in self._given_back:
            self._given_back.add(index)
            self._left.append((index, item))
        else:
            self._answers[index] = answer

    def _wait_for_others(self, runner: Runner) -> None:
        with self._lock:
            self._working -= 1
            if not self._working:
                self._all_done.set()
        if not self._all_done.wait(GIVE_BACK_S):
            runner.close()


def _machine_failure(results: Sequence[MeasureResult]) -> str | None:
    return next((result.error for result in results if result.error_kind in MACHINE_FAILED), None)
