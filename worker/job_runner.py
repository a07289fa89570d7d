"""One leased job from its first search task to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from tuner.errors import ShapewrightError
from tuner.measure import Builder, BuilderLost, DeviceLost, Runner
from tuner.program.jobspec import Budget
from tuner.search.tuning import Cancelled, Tuned, tune
from tuner.storage import JobState, Lease, LeaseLost, NewEvent, SearchTaskRow, StorageUnavailable
from worker.budget import Spending, share
from worker.heartbeat import HEARTBEAT_S, LEASE_S, Heartbeat
from worker.leased_job import LeasedJob, SearchStorage
from worker.recorder import LeaseRecorder
from worker.retry import Retry

log = logging.getLogger(__name__)

LOSSES = 3
"""How often in a row a search may lose its device or its builder, with nothing recorded in between, before it fails."""
MAX_ERROR = 4000


class Tools(Protocol):
    """What a search builds and measures with. Requested again after each loss, so that it can be replaced."""

    def builder(self) -> Builder:
        """Raises BuilderLost."""

    def runner(self, key: str) -> Runner:
        """For the devices of a tracker key."""


Tune = Callable[..., Tuned]


@dataclass
class JobRunner:
    """Runs the search tasks of leased jobs in order, and ends each job in the state that its search came to.

    ``stopping`` is true once the worker is shutting down: the job is released then, and another worker resumes it.
    """

    storage: SearchStorage
    tools: Tools
    stopping: Callable[[], bool] = lambda: False
    tune: Tune = tune
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    retry: Retry = field(default_factory=Retry)

    def run(self, lease: Lease) -> JobState | None:
        """The state in which the job ended; None if it was released or lost. Never raises for a job's own failure."""
        with Heartbeat(self.storage, lease, self.lease_s, self.heartbeat_s) as heartbeat:
            job = LeasedJob(lease, self.storage, heartbeat, self.retry)
            try:
                self._search(job)
            except Cancelled:
                return self._stopped(job)
            except LeaseLost as error:
                log.warning("job %s is no longer this worker's: %s", job.id, error)
                return None
            except StorageUnavailable as error:
                log.error("job %s is abandoned, the database is unavailable: %s", job.id, error)
                return None
            except Exception as error:
                # Whatever a search may raise must end the job, with its reason, and not the worker.
                return self._failed(job, error)
            return job.finish(JobState.COMPLETED)

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

    def _search(self, job: LeasedJob) -> None:
        rows = job.lease.tasks
        for index, row in enumerate(rows):
            if not row.done:
                spending = [Spending(each.count, len(job.records(each)), each.spent_s, each.done) for each in rows]
                self._search_task(job, row, share(job.budget, spending, index))
                # The time and trials that this task used count against the shares of later ones.
                rows = job.tasks()

    def _search_task(self, job: LeasedJob, row: SearchTaskRow, budget: Budget) -> None:
        """Search one task and store its library; resume from its records after losing the device or the builder."""
        losses, known = 0, -1
        while True:
            trials = len(job.records(row))
            losses, known = (0, trials) if trials != known else (losses, known)
            try:
                tuned = self._tune_once(job, row, budget)
            except (DeviceLost, BuilderLost) as error:
                losses += 1
                if losses >= LOSSES:
                    raise
                job.warn(f"{error}; retrying ({losses} of {LOSSES - 1})")
            else:
                LeaseRecorder(job, row).record([], [NewEvent("progress", tuned.summary.to_json())], None, tuned.summary)
                return job.save_library(row, tuned)

    def _tune_once(self, job: LeasedJob, row: SearchTaskRow, budget: Budget) -> Tuned:
        def should_stop() -> bool:
            return job.should_stop() or self.stopping()

        if should_stop():
            raise Cancelled
        row = job.task(row.id)
        with closing(self.tools.runner(job.device)) as runner:
            return self.tune(
                row.task,
                builder=self.tools.builder(),
                runner=runner,
                recorder=LeaseRecorder(job, row),
                budget=budget,
                policy=job.policy,
                seed=job.seed,
                past=job.records(row),
                baselines=row.baselines,
                warm=job.warm_start_records(row),
                spent_s=row.spent_s,
                should_stop=should_stop,
                job_id=job.id,
            )


def _message(error: Exception) -> str:
    text = str(error) if isinstance(error, ShapewrightError) else f"{type(error).__name__}: {error}"
    return text[-MAX_ERROR:]
