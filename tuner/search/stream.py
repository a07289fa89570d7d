"""A Runner whose calls do not wait: kernels go in, and come out when they are measured."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tuner.measure import BuildResult, Runner, RunRequest
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult
from tuner.search.policy import Suggestion


@dataclass(frozen=True, slots=True)
class Queued:
    """A suggestion, and the round in which it was made."""

    suggestion: Suggestion
    round: int

    @property
    def trials(self) -> int:
        return len(self.suggestion.instances)


@dataclass(eq=False, slots=True)
class InFlight:
    """One call of the runner. ``results`` are those of the first of its trials, which were done, and ``error`` is what
    the call raised."""

    queued: Sequence[Queued]
    results: Sequence[MeasureResult] = ()
    error: BaseException | None = None


class MeasureStream:
    """The calls of ``runner`` that are under way, at most ``calls`` at once: more than one only for a runner of several
    devices, which takes calls from several threads. ``interrupted`` as in Runner.

    Leaving it ends what is under way; whoever wants its results takes them before. For use from one thread.
    """

    def __init__(self, task: SearchTask, runner: Runner, calls: int, interrupted: Callable[[], bool]) -> None:
        self._task, self._runner, self._interrupted = task, runner, interrupted
        self._threads = ThreadPoolExecutor(calls, thread_name_prefix="measure")
        self._done: queue.SimpleQueue[InFlight] = queue.SimpleQueue()
        self._flights: dict[InFlight, Future[None]] = {}
        self._is_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left = True
        self._threads.shutdown(cancel_futures=True)

    @property
    def under_way(self) -> list[Queued]:
        """What has not been taken yet."""
        return [queued for flight in self._flights for queued in flight.queued]

    def submit(self, queued: Sequence[Queued], builds: Sequence[BuildResult]) -> None:
        """Measure these, in one call of the runner."""
        flight = InFlight(queued)
        requests = [RunRequest(build, each.suggestion.instances) for each, build in zip(queued, builds, strict=True)]
        self._flights[flight] = self._threads.submit(self._measure, flight, requests)

    def take(self, at_least: int, at_most: int) -> list[InFlight]:
        """The calls that are done, in the order in which they were; waits for ``at_least``, or for all."""
        taken: list[InFlight] = []
        while self._flights and (len(taken) < at_least or (len(taken) < at_most and not self._done.empty())):
            taken.append(self._done.get())
            del self._flights[taken[-1]]
        return taken

    def withdraw(self) -> None:
        """Give up the calls that have not begun."""
        self._flights = {flight: call for flight, call in self._flights.items() if not call.cancel()}

    def _measure(self, flight: InFlight, requests: Sequence[RunRequest]) -> None:
        try:
            if not self._is_unwanted():
                flight.results = self._runner.run(self._task, requests, self._is_unwanted)
        except BaseException as error:
            flight.error = error
        self._done.put(flight)

    def _is_unwanted(self) -> bool:
        return self._is_left or self._interrupted()
