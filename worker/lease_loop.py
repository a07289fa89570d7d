"""The worker's main loop: refresh the list of devices, lease a job, run it; until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tuner.measure import DeviceLost
from tuner.storage import Lease, LeaseStorage, StorageUnavailable
from worker.devices import DeviceList
from worker.heartbeat import LEASE_S

log = logging.getLogger(__name__)

POLL_S = 0.5
OUTAGE_WAIT_S = 2.0
"""The wait after an error of the database or the tracker."""


@dataclass
class LeaseLoop:
    """Leases jobs for the devices that are registered and runs them, one at a time."""

    storage: LeaseStorage
    devices: DeviceList
    run: Callable[[Lease], object]
    worker: str
    stop: threading.Event
    lease_s: float = LEASE_S
    poll_s: float = POLL_S

    def run_forever(self) -> None:
        """Returns when ``stop`` is set. Outages of the database and the tracker are retried."""
        while not self.stop.is_set():
            try:
                lease = self._next()
            except (StorageUnavailable, DeviceLost) as error:
                log.warning("%s; retrying in %g s", error, OUTAGE_WAIT_S)
                self.stop.wait(OUTAGE_WAIT_S)
                continue
            if lease is None:
                self.stop.wait(self.poll_s)
                continue
            log.info("job %s (%s) leased, epoch %d", lease.job.id, lease.job.name, lease.epoch)
            self.run(lease)

    def _next(self) -> Lease | None:
        keys = self.devices.refresh()
        return self.storage.lease_job(self.worker, self.lease_s, keys) if keys else None
