"""One leased job from its first search task to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tuner.errors import ShapewrightError
from tuner.measure import Builder, BuilderLost, DeviceLost, Runner
from tuner.program.jobspec import Budget, parse_budget
from tuner.rules import rule_for
from tuner.search.tuning import Cancelled, Tuned, tune
from tuner.storage import JobState, Lease, LeaseLost, NewEvent, SearchTaskRow, Storage, StorageUnavailable
from worker.budget import Spending, share
from worker.heartbeat import HEARTBEAT_S, LEASE_S, Heartbeat
from worker.patience import Patience
from worker.recorder import LeaseRecorder

log = logging.getLogger(__name__)
T = TypeVar("T")

LOSSES = 3
"""How often in a row a search may lose its device or its builder, with nothing recorded in between, before it fails."""
MAX_ERROR = 4000


class Tools(Protocol):
    """What a search builds and measures with. Asked for anew after each loss, so that it can be replaced."""

    def builder(self) -> Builder:
        """Raises BuilderLost."""

    def runner(self, key: str) -> Runner:
        """For the devices of a tracker key."""


Tune = Callable[..., Tuned]


@dataclass
class JobRunner:
    """Runs the search tasks of leased jobs, one after another, and leaves each job in the state that it earned.

    ``stopping`` says that the worker is to end: the job is given back then, and another worker goes on with it.
    """

    storage: Storage
    tools: Tools
    stopping: Callable[[], bool] = lambda: False
    tune: Tune = tune
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    patience: Patience = field(default_factory=Patience)

    def run(self, lease: Lease) -> JobState | None:
        """The state in which the job ended; None if it goes on elsewhere. Never raises for a job's own failure."""
        with Heartbeat(self.storage, lease, self.lease_s, self.heartbeat_s) as heart:
            try:
                self._search(lease, heart)
            except Cancelled:
                return self._stopped(lease, heart)
            except LeaseLost as error:
                log.warning("job %s is no longer this worker's: %s", lease.job.id, error)
                return None
            except StorageUnavailable as error:
                log.error("job %s is given up, the database is away: %s", lease.job.id, error)
                return None
            except Exception as error:
                # Whatever a search may raise must end the job, with its reason, and not the worker.
                return self._broken(lease, heart, error)
            return self._finish(lease, heart, JobState.COMPLETED)

    def _broken(self, lease: Lease, heart: Heartbeat, error: Exception) -> JobState | None:
        """End a job whose search raised ``error``, which says nothing of the job if tools were closed under it."""
        if self.stopping():
            log.info("job %s: %s while stopping", lease.job.id, _message(error))
            return self._stopped(lease, heart)
        log.error("job %s failed: %s", lease.job.id, error, exc_info=not isinstance(error, ShapewrightError))
        return self._finish(lease, heart, JobState.FAILED, _message(error))

    def _stopped(self, lease: Lease, heart: Heartbeat) -> JobState | None:
        """Give back the job of a worker that is to end; a job that was cancelled ends as that."""
        if self.stopping() and not heart.cancelling():
            self._release(lease)
            return None
        return self._finish(lease, heart, JobState.CANCELLED, "cancelled on request")

    def _search(self, lease: Lease, heart: Heartbeat) -> None:
        budget = parse_budget(lease.job.spec.get("budget"))
        rows = list(lease.tasks)
        for index, row in enumerate(rows):
            if not row.done:
                self._search_task(lease, heart, row, self._share(budget, rows, index, heart))
                # What it has spent and recorded since counts for those that come after it.
                rows = list(self._ask(lambda: self.storage.search_tasks(lease.job.id), heart))

    def _share(self, budget: Budget, rows: list[SearchTaskRow], index: int, heart: Heartbeat) -> Budget:
        tasks = [Spending(row.count, self._trials(row, heart), row.spent_s, row.done) for row in rows]
        return share(budget, tasks, index)

    def _trials(self, row: SearchTaskRow, heart: Heartbeat) -> int:
        return len(self._ask(lambda: self.storage.records_of_task(row.id), heart))

    def _search_task(self, lease: Lease, heart: Heartbeat, row: SearchTaskRow, budget: Budget) -> None:
        """Search one task and store its library; again from its records whenever device or builder were lost."""
        losses, known = 0, -1
        while True:
            trials = self._trials(row, heart)
            losses, known = (0, trials) if trials != known else (losses, known)
            try:
                tuned = self._tune_once(lease, heart, row, budget)
            except (DeviceLost, BuilderLost) as error:
                losses += 1
                if losses >= LOSSES:
                    raise
                self._say(lease, heart, f"{error}; trying again ({losses} of {LOSSES - 1})")
            else:
                return self._save(lease, heart, row, tuned)

    def _tune_once(self, lease: Lease, heart: Heartbeat, row: SearchTaskRow, budget: Budget) -> Tuned:
        def should_stop() -> bool:
            return heart.lost() or heart.cancelling() or self.stopping()

        if should_stop():
            raise Cancelled
        row = self._row(lease, row, heart)
        past = self._ask(lambda: self.storage.records_of_task(row.id), heart)
        rule = rule_for(row.task.workload).name
        others = self._ask(
            lambda: self.storage.records_of_target(row.target_fingerprint, row.task.threads, rule), heart
        )
        with closing(self.tools.runner(lease.job.device)) as runner:
            return self.tune(
                row.task,
                builder=self.tools.builder(),
                runner=runner,
                recorder=LeaseRecorder(self.storage, lease, row, self.patience, heart.lost),
                budget=budget,
                policy=lease.job.spec.get("policy", "evolutionary"),
                seed=lease.job.spec.get("seed", 0),
                past=past,
                baselines=row.baselines,
                warm=[(workload, record) for workload, record in others if record.search_task_id != row.id],
                spent_s=row.spent_s,
                should_stop=should_stop,
                job_id=lease.job.id,
            )

    def _row(self, lease: Lease, row: SearchTaskRow, heart: Heartbeat) -> SearchTaskRow:
        """The search task as it stands now: time spent before a loss counts."""
        rows = self._ask(lambda: self.storage.search_tasks(lease.job.id), heart)
        return next(found for found in rows if found.id == row.id)

    def _save(self, lease: Lease, heart: Heartbeat, row: SearchTaskRow, tuned: Tuned) -> None:
        recorder = LeaseRecorder(self.storage, lease, row, self.patience, heart.lost)
        recorder.record([], [NewEvent("progress", tuned.summary)], None, tuned.summary)
        self._ask(
            lambda: self.storage.save_library(lease, row.id, tuned.files, tuned.manifest, tuned.dispatch), heart
        )
        log.info("job %s: library %s for %s", lease.job.id, tuned.manifest.get("digest", "")[:12], row.workload_key)

    def _finish(self, lease: Lease, heart: Heartbeat, state: JobState, error: str = "") -> JobState | None:
        try:
            return self._ask(lambda: self.storage.finish_job(lease, state, error), heart).state
        except (LeaseLost, StorageUnavailable) as problem:
            log.warning("job %s could not be ended as %s: %s", lease.job.id, state, problem)
            return None

    def _release(self, lease: Lease) -> None:
        """Give the job back while the worker ends; if that fails, its lease runs out by itself."""
        try:
            self.storage.release_job(lease)
            log.info("job %s is given back", lease.job.id)
        except (LeaseLost, StorageUnavailable) as error:
            log.warning("job %s could not be given back: %s", lease.job.id, error)

    def _say(self, lease: Lease, heart: Heartbeat, text: str) -> None:
        log.warning("job %s: %s", lease.job.id, text)
        event = NewEvent("log", {"level": "warning", "message": text})
        self._ask(lambda: self.storage.append_events(lease, [event]), heart)

    def _ask(self, call: Callable[[], T], heart: Heartbeat) -> T:
        return self.patience(call, heart.lost)


def _message(error: Exception) -> str:
    text = str(error) if isinstance(error, ShapewrightError) else f"{type(error).__name__}: {error}"
    return text[-MAX_ERROR:]
