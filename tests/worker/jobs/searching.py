"""Ways to run the searches of a job: in this process, and in others; and searches that do harm where they run."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tuner.search.search import Search
from worker.jobs.searches import OpenSearch
from worker.remote.actors import JobActors
from worker.remote.host import SearchHost
from worker.remote.messages import FromHost, ToHost
from worker.remote.search import SearchLost, SearchProcess


class LocalLink:
    """A SearchHost in this process; everything that is said is pickled. ``die`` is the end of it."""

    def __init__(self, open_search: Callable[..., Any] = Search) -> None:
        self._host = SearchHost(open_search)
        self._died = threading.Event()

    def deliver(self, messages: Sequence[ToHost]) -> None:
        self._host.deliver(pickle.loads(pickle.dumps(messages)))

    def poll(self, wait_s: float) -> Sequence[FromHost]:
        messages = [] if self._died.is_set() else self._host.messages(wait_s)
        if self._died.is_set():
            self.die()
            raise SearchLost("it has died: killed")
        result: Sequence[FromHost] = pickle.loads(pickle.dumps(messages))
        return result

    def close(self) -> None:
        self.die()

    def die(self) -> None:
        self._died.set()
        # The threads of a process would end with it: these are told that the worker is gone.
        self._host._outbox._asked_s = float("-inf")


@contextmanager
def local_searches(open_search: Callable[..., Any] = Search) -> Iterator[OpenSearch]:
    """Searches behind messages, in threads of this process."""
    actors = JobActors(lambda: SearchProcess(LocalLink(open_search)))
    try:
        yield actors.open
    finally:
        actors.close()
