"""The processes of searches, on Ray."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from tuner.program.job.task import SearchTask
from tuner.search.context import FROM_NOTHING, SearchStart, SearchTools
from tuner.search.search import Search
from worker.building.actor_pool import GONE
from worker.remote.host import SearchHost
from worker.remote.messages import FromHost, ToHost
from worker.remote.search import RemoteSearch, SearchLost, SearchProcess

log = logging.getLogger(__name__)

CORES = 0.001
"""Cores of a search actor, as Ray counts them: it goes where there are cores that build, and never waits for one."""
ENVIRONMENT = {"env_vars": {"RAY_worker_niceness": "0"}}
"""Ray's processes have a niceness of 15: whatever else keeps the cores busy would stop all searching. That of builders
stays, since they run beside measurements."""
SEARCHES_PER_ACTOR = 4
"""Searches of one job per actor. They share an interpreter; each process costs memory (docs/decisions/0035)."""
START_S = 120.0
"""An actor's time to start, which takes a second or two where the cores are not busy."""
SILENT_S = 60.0
"""The time without an answer after which an actor is lost: native code keeps all of its threads from running."""
POLL_S = 5.0
"""How long an actor waits for a message to send."""
GET_S = 10.0


class RayLink:
    """A SearchHost in an actor of its own. ``alive`` says whether the cluster still runs: calls to a dead one hang."""

    def __init__(self, open_search: Callable[..., Any], alive: Callable[[], bool]) -> None:
        self._alive = alive
        # One thread takes messages in, one waits for some to send.
        made: Any = ray.remote(
            num_cpus=CORES,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,
            scheduling_strategy="SPREAD",
            runtime_env=ENVIRONMENT,
        )(SearchHost)
        self._actor = made.remote(open_search)
        self._asked: Any = None
        self._asked_s, self._limit_s = 0.0, START_S
        self._sent: deque[Any] = deque()
        self._is_closed = False

    def deliver(self, messages: Sequence[ToHost]) -> None:
        self._check_alive()
        self._sent.append(self._actor.deliver.remote(messages))

    def poll(self, wait_s: float) -> Sequence[FromHost]:
        self._check_alive()
        if self._asked is None:
            self._asked, self._asked_s = self._actor.messages.remote(POLL_S), time.monotonic()
        if not ray.wait([self._asked], timeout=wait_s)[0]:
            if time.monotonic() - self._asked_s > self._limit_s:
                raise SearchLost(f"it has said nothing for {self._limit_s:g} s")
            return []
        asked, self._asked, self._limit_s = self._asked, None, SILENT_S
        try:
            messages: Sequence[FromHost] = ray.get(asked, timeout=GET_S)
            self._check_sent()
        except RayActorError as error:
            log.log(logging.INFO if self._is_closed else logging.WARNING, "a process of searches: %s", error)
            raise SearchLost(f"it has died: {_reason(str(error))}") from error
        except RayError as error:
            raise SearchLost(f"Ray failed: {error}") from error
        return messages

    def _check_sent(self) -> None:
        """Raises RayError if something that was sent could not be read there: nobody would answer it."""
        for _ in range(len(self._sent)):
            sent = self._sent.popleft()
            if ray.wait([sent], timeout=0)[0]:
                ray.get(sent)
            else:
                self._sent.append(sent)

    def close(self) -> None:
        self._is_closed = True
        if ray.is_initialized() and self._alive():
            ray.kill(self._actor, no_restart=True)

    def _check_alive(self) -> None:
        if not self._alive():
            raise SearchLost(GONE)


def _reason(text: str) -> str:
    """What Ray knows of an actor's death, in a line: the rest of its text is advice."""
    because, ended = re.search(r"because ([^.]*)", text), re.search(r"Worker exit type: (\w+)", text)
    known = " ".join(each.group(1) for each in (because, ended) if each is not None)
    return f"killed, out of memory, or a crash of native code ({known or 'Ray does not know'})"


class SearchActors:
    """Makes processes of searches on a cluster, and keeps one in store: it takes a second to start.

    For use from several threads.
    """

    def __init__(self, open_search: Callable[..., Any] = Search, *, alive: Callable[[], bool]) -> None:
        self._open_search, self._alive = open_search, alive
        self._lock = threading.Lock()
        self._spare: SearchProcess | None = None
        self._made: list[SearchProcess] = []

    def start(self) -> None:
        """Start the one in store, without waiting for it."""
        with self._lock:
            self._spare = self._new()

    def take(self) -> SearchProcess:
        """A process for searches of one job. Raises SearchLost if the cluster is gone."""
        with self._lock:
            taken, self._spare = self._spare, None
            if taken is None or taken.is_lost:
                taken = self._new()
            self._spare = self._new()
        return taken

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no thread uses the cluster, once it is gone. Ray must not be shut down before."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            return all(process.join(max(0.0, deadline - time.monotonic())) for process in self._made)

    def close(self) -> None:
        with self._lock:
            for process in self._made:
                process.end()

    def _new(self) -> SearchProcess:
        if not self._alive():
            raise SearchLost(GONE)
        self._made = [process for process in self._made if not process.is_lost]
        self._made.append(SearchProcess(RayLink(self._open_search, self._alive)))
        return self._made[-1]


class JobActors:
    """The processes of one job's searches: a crash in one of them concerns no other job.

    ``take`` hands out another one, and raises SearchLost. Close it when the job has ended.
    """

    def __init__(self, take: Callable[[], SearchProcess]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._processes: list[SearchProcess] = []

    def open(
        self, task: SearchTask, tools: SearchTools, start: SearchStart = FROM_NOTHING, **given: Any
    ) -> RemoteSearch:
        """Arguments as of Search. Raises what that raises, and SearchLost."""
        with self._lock:
            self._processes = [process for process in self._processes if not process.is_lost]
            with_capacity = (process for process in self._processes if process.searches < SEARCHES_PER_ACTOR)
            process = next(with_capacity, None)
            if process is None:
                process = self._take()
                self._processes.append(process)
        return process.open(task, tools, start, **given)

    def close(self) -> None:
        with self._lock:
            for process in self._processes:
                process.end()
