"""One leased job from its first search task to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.errors import ShapewrightError
from tuner.measure import BuilderLost, DeviceLost
from tuner.search.tuning import Cancelled, Search
from tuner.storage import JobState, Lease, LeaseLost, StorageUnavailable
from tuner.storage.jsonl import SharedRecord
from tuner.storage.sql import WorkerStorage
from worker.devices.calibrations import RatesOf, typical
from worker.jobs.heartbeat import HEARTBEAT_S, LEASE_S, Heartbeat
from worker.jobs.leased_job import LeasedJob
from worker.jobs.retry import Retry
from worker.jobs.searches import JobSearches, OpenSearch, Tools

log = logging.getLogger(__name__)

MAX_ERROR = 4000


@dataclass
class JobRunner:
    """Runs the searches of leased jobs, and ends each job in the state that they came to.

    ``stopping`` is true once the worker is shutting down: the job is released then, and another worker resumes it.
    ``shared`` are records of elsewhere that searches start from, beside those of the storage.
    """

    storage: WorkerStorage
    tools: Tools
    stopping: Callable[[], bool] = lambda: False
    open_search: OpenSearch = Search
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    retry: Retry = field(default_factory=Retry)
    shared: Sequence[SharedRecord] = ()
    rates_of: RatesOf = typical
    """The rates that theory takes for the devices of a job, read before its searches begin."""
    began_s: float | None = None
    """When a job's seconds begin to count, on the monotonic clock; None: once its searches begin."""

    def run(self, lease: Lease) -> JobState | None:
        """The state in which the job is left, WAITING if this attempt failed and another may be made; None if it was
        released or lost. Never raises for a job's own failure."""
        with Heartbeat(self.storage, lease, self.lease_s, self.heartbeat_s) as heartbeat:
            job = LeasedJob(lease, self.storage, heartbeat, self.retry)
            try:
                given = self.tools, self.open_search, self.stopping, self.shared, self.rates_of
                JobSearches(job, *given, began_s=self.began_s).run()
            except Cancelled:
                return self._stopped(job)
            except LeaseLost as error:
                log.warning("job %s is no longer this worker's: %s", job.id, error)
                return None
            except StorageUnavailable as error:
                log.error("job %s is abandoned, the database is unavailable: %s", job.id, error)
                return None
            except (DeviceLost, BuilderLost) as error:
                return self._given_up(job, error)
            except Exception as error:
                # Whatever a search may raise must end the job, with its reason, and not the worker.
                return self._failed(job, error)
            return job.finish(JobState.COMPLETED)

    def _given_up(self, job: LeasedJob, error: Exception) -> JobState | None:
        """Let another attempt be made at a job that lost its device or its builder too often, by whichever worker."""
        if self.stopping():
            return self._stopped(job)
        log.warning("job %s: this attempt failed: %s", job.id, error)
        return job.fail_attempt(_message(error))

    def _failed(self, job: LeasedJob, error: Exception) -> JobState | None:
        """End a job whose search raised. While the worker is stopping the error says nothing about the job: its tools
        may have been closed under it."""
        if self.stopping():
            log.info("job %s: %s while stopping", job.id, _message(error))
            return self._stopped(job)
        log.error("job %s failed: %s", job.id, error, exc_info=not isinstance(error, ShapewrightError))
        return job.finish(JobState.FAILED, _message(error))

    def _stopped(self, job: LeasedJob) -> JobState | None:
        """Release the job of a worker that is stopping; end a job that was cancelled."""
        if self.stopping() and not job.cancelling():
            job.release()
            return None
        return job.finish(JobState.CANCELLED, "cancelled on request")


def _message(error: Exception) -> str:
    text = str(error) if isinstance(error, ShapewrightError) else f"{type(error).__name__}: {error}"
    return text[-MAX_ERROR:]
