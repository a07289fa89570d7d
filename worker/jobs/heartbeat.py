"""Extending a lease, and noticing cancellation, in a thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from types import TracebackType

from tuner.storage import JobState, Lease, LeaseLost, StorageUnavailable
from tuner.storage.sql import WorkerStorage

log = logging.getLogger(__name__)

LEASE_S = 15.0
HEARTBEAT_S = 3.0


class Heartbeat:
    """Extends ``lease`` every ``every_s`` while the context is open. Errors of the database are retried."""

    def __init__(
        self, storage: WorkerStorage, lease: Lease, lease_s: float = LEASE_S, every_s: float = HEARTBEAT_S
    ) -> None:
        self._storage = storage
        self._lease = lease
        self._lease_s = lease_s
        self._every_s = every_s
        self._end = threading.Event()
        self._cancelling = threading.Event()
        self._lost = threading.Event()
        # In the context of its maker, so that its log lines name the job as well.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="heartbeat", daemon=True)

    def cancelling(self) -> bool:
        """Whether the job's cancellation was requested."""
        return self._cancelling.is_set()

    def lost(self) -> bool:
        """Whether another worker has the job now, or the job has ended."""
        return self._lost.is_set()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end.set()
        self._thread.join(timeout=self._lease_s)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                state = self._storage.heartbeat(self._lease, self._lease_s)
            except LeaseLost as error:
                log.warning("job %s: %s", self._lease.job.id, error)
                self._lost.set()
                return
            except StorageUnavailable as error:
                log.warning("job %s: no heartbeat, the database is unavailable: %s", self._lease.job.id, error)
                continue
            except Exception:
                # If this thread ended, the lease would be lost silently; the next heartbeat may succeed.
                log.exception("job %s: no heartbeat", self._lease.job.id)
                continue
            if state is JobState.CANCELLING:
                self._cancelling.set()
