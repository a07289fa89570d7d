"""The process in which searches run: it hosts them, and has the worker build, measure and record for them.

Nothing here is of Ray: worker.remote.actors runs it as an actor.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, cast

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuilderLost, BuildResult, RunRequest, Turns, TurnsRequest, never
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baselines, MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.context import SearchStart, SearchTools
from tuner.search.search import Search
from tuner.search.summary import SearchSummary
from tuner.storage import NewEvent
from worker.remote.messages import Answer, Call, Do, Ended, FromHost, Interrupt, NewState, Outcome, State, ToHost

ASK_EVERY_S = 0.1
"""How often a search that waits for a measurement is checked for whether it still wants it."""
SILENT_S = 120.0
"""The time without a request for messages after which a worker is gone."""


class SearchHost:
    """Hosts searches, each known by a number. ``open_search`` makes one.

    ``deliver`` and ``messages`` may be called from two threads. Methods of searches run in threads of their own.
    """

    def __init__(self, open_search: Callable[..., Any] = Search) -> None:
        self._open_search = open_search
        self._outbox = _Outbox()
        self._hosted: dict[int, _Hosted] = {}

    def deliver(self, messages: Sequence[ToHost]) -> None:
        """Take in what the worker says. Returns at once."""
        for message in messages:
            match message:
                case Answer():
                    self._outbox.settle(message)
                case NewState(number, state):
                    if number in self._hosted:
                        self._hosted[number].take(state)
                case Do():
                    self._begin(message)

    def messages(self, wait_s: float) -> list[FromHost]:
        """Messages for the worker; waits for a first one up to the given time."""
        return self._outbox.take(wait_s)

    def _begin(self, message: Do) -> None:
        if message.method == "open":
            self._hosted[message.search] = _Hosted(self._outbox, message.search, message.args[0])
        self._hosted[message.search].take(message.state)
        threading.Thread(target=self._do, args=(message,), name=message.method, daemon=True).start()

    def _do(self, message: Do) -> None:
        hosted = self._hosted[message.search]
        outcome = Outcome.of(lambda: hosted.do(self._open_search, message))
        if message.method == "close" or hosted.search is None:
            del self._hosted[message.search]
        summary = Outcome.of(lambda: hosted.summary)
        outcome = outcome if summary.error is None or outcome.error is not None else summary
        self._outbox.put(Ended(message.id, message.search, outcome, summary.value))


class _Outbox:
    """Messages to the worker, and the calls among them that it has not answered."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[FromHost] = queue.SimpleQueue()
        self._pending: dict[int, Future[Outcome]] = {}
        self._ids = itertools.count()
        self._asked_s = time.monotonic()

    def put(self, message: FromHost) -> None:
        self._queue.put(message)

    def take(self, wait_s: float) -> list[FromHost]:
        self._asked_s = time.monotonic()
        result: list[FromHost] = []
        try:
            result.append(self._queue.get(timeout=wait_s))
            while True:
                result.append(self._queue.get_nowait())
        except queue.Empty:
            return result

    def call(self, search: int, method: str, args: tuple[Any, ...], interrupted: Callable[[], bool] = never) -> Any:
        """What the worker answers. Raises what it raised, and BuilderLost if it is gone."""
        number, future, is_wanted = next(self._ids), Future[Outcome](), True
        self._pending[number] = future
        self.put(Call(number, search, method, args))
        try:
            while not wait([future], ASK_EVERY_S).done:
                if is_wanted and interrupted():
                    is_wanted = False
                    self.put(Interrupt(number, search))
                if time.monotonic() - self._asked_s > SILENT_S:
                    raise BuilderLost(f"the worker has said nothing for {SILENT_S:g} s")
        finally:
            del self._pending[number]
        return future.result().get()

    def settle(self, answer: Answer) -> None:
        if (future := self._pending.get(answer.id)) is not None:
            future.set_result(answer.outcome)


class _Hosted:
    """A search and its ports: its builder, runner and recorder, which are those of the worker."""

    def __init__(self, outbox: _Outbox, number: int, task: SearchTask) -> None:
        self._outbox, self._number, self._task = outbox, number, task
        self.state = State()
        self.search: Any = None

    @property
    def summary(self) -> SearchSummary | None:
        return None if self.search is None else cast("SearchSummary", self.search.summary)

    def take(self, state: State) -> None:
        """Two messages may overtake each other."""
        self.state = max(self.state, state, key=lambda each: each.serial)

    def do(self, open_search: Callable[..., Any], message: Do) -> Any:
        if message.method == "open":
            return self._open(open_search, *message.args[1:])
        return getattr(self.search, message.method)(*message.args)

    def _open(self, open_search: Callable[..., Any], start: SearchStart, given: Mapping[str, Any]) -> None:
        self.search = open_search(
            self._task,
            SearchTools(
                _Builder(self),
                _Runner(self),
                _Recorder(self),
                should_stop=lambda: self.state.should_stop,
                should_finish=lambda: self.state.should_finish,
            ),
            start,
            **given,
        )

    def call(self, method: str, *args: Any, interrupted: Callable[[], bool] = never) -> Any:
        return self._outbox.call(self._number, method, args, interrupted)

    def named(self, task: SearchTask) -> SearchTask | None:
        """None for the search's own task, which the worker has."""
        return None if task is self._task else task


class _Builder:
    """A Builder. Binaries stay with the worker: what it returns holds handles of them."""

    def __init__(self, hosted: _Hosted) -> None:
        self._hosted = hosted

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return cast("list[BuildResult]", self._hosted.call("build", self._hosted.named(task), list(kernels)))

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        return cast("LibraryFiles", self._hosted.call("library", dispatcher, job_id, dict(objects)))

    def close(self) -> None:
        """The worker's builder serves other searches, too."""


class _Runner:
    """A Runner."""

    def __init__(self, hosted: _Hosted) -> None:
        self._hosted = hosted

    @property
    def devices(self) -> int:
        return self._hosted.state.devices

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        self._hosted.call("ready", self._hosted.named(task), interrupted=interrupted)

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        answer = self._hosted.call("run", self._hosted.named(task), list(requests), interrupted=interrupted)
        return cast("list[MeasureResult]", answer)

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        answer = self._hosted.call("verify", self._hosted.named(task), build, list(dims), interrupted=interrupted)
        return cast("list[tuple[Mapping[str, int], str]]", answer)

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        return cast("Baselines", self._hosted.call("baselines", self._hosted.named(task), list(instances)))

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        answer = self._hosted.call("turns", self._hosted.named(task), request, interrupted=interrupted)
        return cast("Turns", answer)

    def close(self) -> None:
        """The worker's runner serves other searches, too."""


class _Recorder:
    """A Recorder."""

    def __init__(self, hosted: _Hosted) -> None:
        self._hosted = hosted

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: SearchSummary
    ) -> None:
        self._hosted.call("record", list(results), list(events), spent_s, summary)

    def record_baselines(self, baselines: Baselines) -> None:
        self._hosted.call("record_baselines", baselines)
