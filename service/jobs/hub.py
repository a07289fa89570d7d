"""Waking event streams: one thread of this process looks for new events, for all of its streams.

The database is the only channel between workers and streams, so someone has to look. A stream reads only once it is
woken: an idle one costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.storage import StorageUnavailable
from tuner.storage.sql import ClientStorage

SHARE = 20
"""The thread rests this many times as long as its last look took: it never takes more than a 20th of a core."""
CERTAIN_S = 5.0
"""How often it looks at the streams' jobs even if nothing seems to have been committed."""
AWAY_S = 0.5
"""The pause before another attempt while the database is unavailable."""

_log = logging.getLogger(__name__)


class Bell:
    """Wakes one stream. Used on the stream's event loop, but for ``ring``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def clear(self) -> None:
        self._rung.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it has rung since ``clear``, or does so within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._rung.wait()
        except TimeoutError:
            return False

    def ring(self) -> None:
        """Wake the stream, from any thread. A stream whose loop has ended needs no waking."""
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            _log.debug("a stream's event loop has ended")


class EventHub:
    """Rings the bells of a job's streams when the job has new events. Its thread runs while there are streams.

    ``poll_s``: the least pause between two looks.
    """

    def __init__(self, storage: ClientStorage, poll_s: float) -> None:
        self._storage = storage
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._bells: dict[str, set[Bell]] = {}
        self._seen: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self, job_id: str) -> Iterator[Bell]:
        """A bell that rings after every commit of events of this job that a later read could have missed."""
        bell = Bell()
        with self._lock:
            self._bells.setdefault(job_id, set()).add(bell)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="event-hub", daemon=True)
                self._thread.start()
        try:
            yield bell
        finally:
            with self._lock:
                self._bells[job_id].discard(bell)
                if not self._bells[job_id]:
                    del self._bells[job_id]
                    self._seen.pop(job_id, None)

    def ring_all(self) -> None:
        """Wake every stream: the service is about to end."""
        with self._lock:
            bells = [bell for each in self._bells.values() for bell in each]
        for bell in bells:
            bell.ring()

    def _watch(self) -> None:
        watch = self._storage.watch_commits()
        looked_at = float("-inf")
        try:
            while jobs := self._wanted():
                started = time.monotonic()
                try:
                    if watch.changed() or started - looked_at >= CERTAIN_S:
                        self._look(jobs)
                        looked_at = started
                    pause_s = max(self._poll_s, SHARE * (time.monotonic() - started))
                except StorageUnavailable as error:
                    _log.warning("no look for new events, the database is unavailable: %s", error)
                    pause_s = AWAY_S
                except Exception:
                    # If this thread ended, every open stream would fall silent.
                    _log.exception("no look for new events")
                    pause_s = AWAY_S
                time.sleep(min(pause_s, CERTAIN_S))
        finally:
            watch.close()

    def _wanted(self) -> list[str]:
        """The jobs that have streams; with none left, the thread is notified and the next stream starts another."""
        with self._lock:
            if not self._bells:
                self._thread = None
            return list(self._bells)

    def _look(self, jobs: list[str]) -> None:
        # Commits after this read are seen at the next look: the watch was read before it.
        newest = self._storage.last_events(jobs)
        with self._lock:
            news = [job_id for job_id, seq in newest.items() if job_id in self._bells and self._seen.get(job_id) != seq]
            self._seen.update((job_id, newest[job_id]) for job_id in news)
            bells = [bell for job_id in news for bell in self._bells[job_id]]
        for bell in bells:
            bell.ring()
