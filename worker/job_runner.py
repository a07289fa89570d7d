"""One leased job from its first search task to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from tuner.errors import ShapewrightError
from tuner.measure import Builder, BuilderLost, DeviceLost, Runner
from tuner.program.jobspec import Budget
from tuner.search.comparison import COMPARE_S, Contender, compare
from tuner.search.reuse import shared_knowledge
from tuner.search.summary import EndedBy
from tuner.search.tuning import Cancelled, Tuned, tune
from tuner.storage import Comparison, JobState, Lease, LeaseLost, NewEvent, SearchTaskRow, StorageUnavailable
from tuner.storage.jsonl import SharedRecord
from worker.budget import Spending, share
from worker.heartbeat import HEARTBEAT_S, LEASE_S, Heartbeat
from worker.leased_job import LeasedJob, SearchStorage
from worker.recorder import LeaseRecorder
from worker.retry import Retry

log = logging.getLogger(__name__)

LOSSES = 3
"""How often in a row a search may lose its device or its builder, with nothing recorded in between, before the attempt
fails."""
COMPARE_SHARE = 0.1
"""The largest share of a budget of seconds that is kept for comparing the library with the one that is served."""
MAX_ERROR = 4000


class Tools(Protocol):
    """What a search builds and measures with. Requested again after each loss, so that it can be replaced."""

    def builder(self) -> Builder:
        """Raises BuilderLost."""

    def runner(self, key: str) -> Runner:
        """For the devices of a tracker key."""

    def parallel_builds(self, key: str, threads: int) -> int:
        """How many kernels may be built while others are measured on those devices, on so many threads each."""


Tune = Callable[..., Tuned]


@dataclass
class JobRunner:
    """Runs the search tasks of leased jobs in order, and ends each job in the state that its search came to.

    ``stopping`` is true once the worker is shutting down: the job is released then, and another worker resumes it.
    ``shared`` are records of elsewhere that searches start from, beside those of the storage.
    """

    storage: SearchStorage
    tools: Tools
    stopping: Callable[[], bool] = lambda: False
    tune: Tune = tune
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    retry: Retry = field(default_factory=Retry)
    shared: Sequence[SharedRecord] = ()

    def run(self, lease: Lease) -> JobState | None:
        """The state in which the job is left, WAITING if this attempt failed and another may be made; None if it was
        released or lost. Never raises for a job's own failure."""
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
                tuned, comparison = self._tune_once(job, row, budget)
            except (DeviceLost, BuilderLost) as error:
                losses += 1
                if losses >= LOSSES:
                    raise
                job.warn(f"{error}; retrying ({losses} of {LOSSES - 1})")
            else:
                LeaseRecorder(job, row).record([], [NewEvent("progress", tuned.summary.to_json())], None, tuned.summary)
                is_done = tuned.summary.ended_by != EndedBy.CANCELLED
                job.save_library(row, tuned, comparison, done=is_done)
                if not is_done:
                    raise Cancelled
                return

    def _tune_once(self, job: LeasedJob, row: SearchTaskRow, budget: Budget) -> tuple[Tuned, Comparison | None]:
        def should_stop() -> bool:
            return job.lost() or self.stopping()

        def is_ending() -> bool:
            return should_stop() or job.cancelling()

        if should_stop():
            raise Cancelled
        row, served = job.task(row.id), self._served(job, row)
        with closing(self.tools.runner(job.device)) as runner:
            tuned = self.tune(
                row.task,
                builder=self.tools.builder(),
                runner=runner,
                recorder=LeaseRecorder(job, row),
                budget=budget,
                policy=job.policy,
                seed=job.seed,
                past=job.records(row),
                baselines=row.baselines,
                knowledge=job.knowledge(row) + shared_knowledge(() if job.is_theory else self.shared, row.task),
                spent_s=row.spent_s,
                after_s=_compare_s(budget) if served else 0.0,
                parallel_builds=self.tools.parallel_builds(job.device, row.task.threads),
                should_stop=should_stop,
                should_finish=job.cancelling,
                job_id=job.id,
            )
            if served is None or tuned.summary.ended_by == EndedBy.CANCELLED:
                return tuned, None
            return tuned, _comparison(job, row, runner, tuned, served, _compare_s(budget), is_ending)

    def _served(self, job: LeasedJob, row: SearchTaskRow) -> Contender | None:
        """The library that the new one is to be compared with; None for one that cannot be read, which says so."""
        try:
            return job.incumbent(row)
        except (LeaseLost, StorageUnavailable):
            raise
        except ShapewrightError as error:
            job.warn(f"the library that is served cannot be compared with: {error}")
            return None


def _comparison(
    job: LeasedJob,
    row: SearchTaskRow,
    runner: Runner,
    tuned: Tuned,
    served: Contender,
    limit_s: float,
    interrupted: Callable[[], bool],
) -> Comparison | None:
    """How the new library does beside the one that is served, in turns on the device. None where that cannot be said:
    the library is worth more than its comparison."""
    if tuned.manifest.get("digest") == served.digest:
        return None
    try:
        new = Contender.of(tuned.manifest, tuned.dispatch, tuned.files)
        result = compare(row.task, runner, new, served, limit_s=limit_s, interrupted=interrupted)
    except DeviceLost as error:
        job.warn(f"the library is not compared with the one that is served: {error}")
        return None
    if result is not None:
        against = f"the library served before ({served.digest[:12]})"
        job.note(f"{result.ratio:.3f} times as fast as {against}, within {100 * result.noise:.1f} %")
    return result


def _compare_s(budget: Budget) -> float:
    return COMPARE_S if budget.seconds is None else min(COMPARE_S, COMPARE_SHARE * budget.seconds)


def _message(error: Exception) -> str:
    text = str(error) if isinstance(error, ShapewrightError) else f"{type(error).__name__}: {error}"
    return text[-MAX_ERROR:]
