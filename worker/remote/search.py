"""A search that runs in another process, as the worker has it."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, cast

from tuner.measure import BuilderLost
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.search.summary import EndedBy, SearchSummary
from tuner.search.tuning import FINISH_S, FROM_NOTHING, SearchStart, SearchTools, Tuned
from worker.remote.calls import Calls
from worker.remote.messages import (
    Answer,
    Call,
    Do,
    Ended,
    FromHost,
    Interrupt,
    NewState,
    Outcome,
    State,
    ToHost,
    sendable,
)

LOOK_S = 0.25
"""How often a search is informed whether to stop."""
MAX_CALLS = 1024
"""Calls of one search that are carried out at once: two for each device. Threads are made as they are needed."""


class SearchLost(BuilderLost):
    """The process of a search has died, or does not answer. The search can be begun again from its records."""


class Link(Protocol):
    """The way to a SearchHost."""

    def deliver(self, messages: Sequence[ToHost]) -> None:
        """Send, without waiting for an answer."""

    def poll(self, wait_s: float) -> Sequence[FromHost]:
        """Its messages; waits for a first one up to the given time. Raises SearchLost."""

    def close(self) -> None:
        """End the process."""


class SearchProcess:
    """A process of searches, seen from the worker: a thread carries messages between them until it is closed, or lost.

    For use from several threads.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._searches: dict[int, RemoteSearch] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._is_ended = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._carry, name="searches", daemon=True)
        self._thread.start()

    @property
    def searches(self) -> int:
        """How many it has."""
        return len(self._searches)

    @property
    def is_lost(self) -> bool:
        return self._problem is not None

    def open(
        self, task: SearchTask, tools: SearchTools, start: SearchStart = FROM_NOTHING, **given: Any
    ) -> RemoteSearch:
        """Begin a search there; arguments as of Search. Raises what that raises, and SearchLost."""
        number = next(self._numbers)
        search = RemoteSearch(self, number, task, tools)
        with self._lock:
            self._searches[number] = search
        try:
            search.open(start, given)
        except BaseException:
            self.forget(number)
            search.settle()
            raise
        return search

    def deliver(self, *messages: ToHost) -> None:
        """Raises SearchLost."""
        if self._problem is not None:
            raise SearchLost(self._problem)
        self._link.deliver(messages)

    def forget(self, number: int) -> None:
        with self._lock:
            self._searches.pop(number, None)

    def end(self) -> None:
        """End the process, and with it whatever its searches do."""
        self._is_ended.set()
        self._link.close()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within that time, and with it all use of the link but ``end``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _carry(self) -> None:
        problem = "it was ended"
        try:
            while not self._is_ended.is_set():
                for message in self._link.poll(LOOK_S):
                    # What the close of a search has overtaken is for nobody.
                    if (search := self._searches.get(message.search)) is not None:
                        search.take(message)
                for search in list(self._searches.values()):
                    search.tell()
        except Exception as error:
            # Whatever it is, those who wait must hear of it.
            problem = str(error) if isinstance(error, SearchLost) else f"{type(error).__name__}: {error}"
        self._lose(f"the process of a search is gone: {problem}")

    def _lose(self, problem: str) -> None:
        # First the problem, then those who wait: whoever begins to wait meanwhile looks for it.
        self._problem = problem
        with self._lock:
            searches = list(self._searches.values())
        for search in searches:
            search.lose(problem)


class RemoteSearch:
    """Search, in a SearchProcess: its calls of builder, runner and recorder are carried out here, in threads.

    Methods raise SearchLost, but only once nothing that it asked for is under way any more: what it measured is
    recorded then, or never will be.
    """

    def __init__(
        self,
        process: SearchProcess,
        number: int,
        task: SearchTask,
        tools: SearchTools,
    ) -> None:
        self.summary = SearchSummary()
        self._process, self._number, self._task, self._tools = process, number, task, tools
        self._calls = Calls(task, tools)
        self._state, self._lock = State(), threading.Lock()
        self._doing: dict[int, Future[Outcome]] = {}
        self._ids = itertools.count()
        self._context = contextvars.copy_context()
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="search")

    # -- what a job does with it ----------------------------------------------------------------------------------
    def open(self, start: SearchStart, given: Mapping[str, Any]) -> None:
        self._do("open", self._task, start, given)

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        return cast("EndedBy", self._do("explore", budget, after_s))

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        return self._calls.whole(self._do("finalize", job_id, budget, after_s))

    def finish(self, job_id: str | None, within_s: float = FINISH_S) -> Tuned:
        return self._calls.whole(self._do("finish", job_id, within_s))

    def close(self) -> None:
        # There is nothing to close where its process is gone.
        with suppress(SearchLost):
            self._do("close")
        self._process.forget(self._number)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is under way any more, and forget what was built."""
        self._calls.interrupt_all()
        self._threads.shutdown(cancel_futures=True)
        self._calls.close()

    def _do(self, method: str, *args: Any) -> Any:
        number, future = next(self._ids), Future[Outcome]()
        self._doing[number] = future
        try:
            self._process.deliver(Do(number, self._number, method, args, self._newest()))
            return future.result().get()
        except SearchLost:
            self.settle()
            raise
        finally:
            del self._doing[number]

    # -- what its process does with it ----------------------------------------------------------------------------
    def take(self, message: FromHost) -> None:
        match message:
            case Call():
                self._calls.begun(message.id)
                self._threads.submit(self._context.copy().run, self._answer, message)
            case Interrupt():
                self._calls.interrupt(message.id)
            case Ended():
                self.summary = message.summary or self.summary
                self._doing[message.id].set_result(message.outcome)

    def tell(self) -> None:
        """Let the search know what has changed, while it does something."""
        known = self._state
        if self._doing and (state := self._newest()) != known:
            self._process.deliver(NewState(self._number, state))

    def lose(self, problem: str) -> None:
        for future in list(self._doing.values()):
            if not future.done():
                future.set_result(Outcome(error=SearchLost(problem)))

    def _newest(self) -> State:
        tools = self._tools
        now = tools.should_stop(), tools.should_finish(), tools.runner.devices
        with self._lock:
            known = self._state
            if now != (known.should_stop, known.should_finish, known.devices):
                self._state = State(known.serial + 1, *now)
            return self._state

    def _answer(self, call: Call) -> None:
        outcome = self._calls.carry_out(call)
        # Its methods report a loss.
        with suppress(SearchLost):
            try:
                self._process.deliver(Answer(call.id, outcome))
            except SearchLost:
                raise
            except Exception as error:
                # What cannot be sent: the search would wait for it without end.
                self._process.deliver(Answer(call.id, Outcome(error=sendable(error))))
