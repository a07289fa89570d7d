"""The worker's main loop: refresh the list of devices, lease jobs, run them; until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tuner import logs
from tuner.measure import BuilderLost, DeviceLost
from tuner.storage import Lease, StorageUnavailable
from tuner.storage.sql import WorkerStorage
from worker.devices.registry import DeviceList
from worker.jobs.heartbeat import LEASE_S

log = logging.getLogger(__name__)

POLL_S = 0.5
OUTAGE_WAIT_S = 2.0
"""The wait after an error of the database or the tracker."""
MAX_JOBS = 16
"""Jobs that one worker runs at once."""


@dataclass
class LeaseLoop:
    """Leases jobs for the devices that are registered and runs them, each in a thread.

    At most as many at once for a key as it has devices, and at most ``most`` in all. ``maintain`` is called
    before a job is leased, by the thread of ``run_forever``: it raises BuilderLost while nothing can be built.
    """

    storage: WorkerStorage
    devices: DeviceList
    run: Callable[[Lease], object]
    worker: str
    stop: threading.Event
    lease_s: float = LEASE_S
    poll_s: float = POLL_S
    most: int = MAX_JOBS
    maintain: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: Counter[str] = field(default_factory=Counter)
    """The number of running jobs by key."""

    def run_forever(self) -> None:
        """Returns when ``stop`` is set and the jobs have ended. Outages of the database and the tracker are retried."""
        with ThreadPoolExecutor(self.most, thread_name_prefix="job") as jobs:
            while not self.stop.is_set():
                self.stop.wait(self._turn(jobs))

    def _turn(self, jobs: ThreadPoolExecutor) -> float:
        """Begin to run a job, if there is one; the seconds to wait before the next turn."""
        try:
            self.maintain()
            lease = self._next()
        except (StorageUnavailable, DeviceLost, BuilderLost) as error:
            log.warning("%s; retrying in %g s", error, OUTAGE_WAIT_S)
            return OUTAGE_WAIT_S
        except Exception:
            # A defect, or something that no device or job may do: none of them ends the worker.
            log.exception("the worker goes on in %g s", OUTAGE_WAIT_S)
            return OUTAGE_WAIT_S
        if lease is None:
            return self.poll_s
        log.info("job %s (%s) leased, epoch %d", lease.job.id, lease.job.name, lease.epoch)
        with self._lock:
            self._running[lease.job.device] += 1
        jobs.submit(self._run, lease)
        return 0.0

    def _run(self, lease: Lease) -> None:
        try:
            with logs.about(job=lease.job.id):
                self.run(lease)
        except Exception:
            log.exception("job %s ended with a defect; the worker goes on", lease.job.id)
        finally:
            with self._lock:
                self._running[lease.job.device] -= 1

    def _next(self) -> Lease | None:
        # Whether there is a device or not.
        self.storage.end_abandoned()
        devices = self.devices.refresh()
        with self._lock:
            is_full = self._running.total() >= self.most
            keys = sorted(key for key, count in devices.items() if self._running[key] < count)
        return self.storage.lease_job(self.worker, self.lease_s, keys) if keys and not is_full else None
