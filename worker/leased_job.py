"""A job under its lease: everything that its search reads and writes, retried while the database is unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from tuner.program.jobspec import DEFAULT_POLICY, Budget, parse_budget
from tuner.program.workload import JsonObject
from tuner.records import TuningRecord
from tuner.rules import rules_of
from tuner.search.tuning import Tuned
from tuner.storage import (
    JobState,
    JobStorage,
    Lease,
    LeaseLost,
    LeaseStorage,
    NewEvent,
    RecordStorage,
    SearchTaskRow,
    StorageUnavailable,
)
from worker.heartbeat import Heartbeat
from worker.retry import Retry

log = logging.getLogger(__name__)
T = TypeVar("T")


class SearchStorage(JobStorage, LeaseStorage, RecordStorage, Protocol):
    """What running a job needs of the storage."""


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A lease with its heartbeat and the storage behind it.

    Every method but ``finish`` and ``release`` raises LeaseLost when another worker has the job, and
    StorageUnavailable when the retries are used up.
    """

    lease: Lease
    storage: SearchStorage
    heartbeat: Heartbeat
    retry: Retry

    @property
    def id(self) -> str:
        return self.lease.job.id

    @property
    def device(self) -> str:
        """The tracker key of the devices to measure on."""
        return self.lease.job.device

    @property
    def budget(self) -> Budget:
        """The budget of the whole job."""
        return parse_budget(self.lease.job.spec.get("budget"))

    @property
    def policy(self) -> str:
        return str(self.lease.job.spec.get("policy", DEFAULT_POLICY))

    @property
    def seed(self) -> int:
        return int(self.lease.job.spec.get("seed", 0))

    def cancelling(self) -> bool:
        """Whether someone asked for the job's cancellation."""
        return self.heartbeat.cancelling()

    def should_stop(self) -> bool:
        """Whether the search is to end early: the job is being cancelled, or is no longer this worker's."""
        return self.heartbeat.lost() or self.heartbeat.cancelling()

    def attempt(self, call: Callable[[], T]) -> T:
        """``call()``, retried while the database is unavailable and the lease is held."""
        return self.retry(call, self.heartbeat.lost)

    # -- reading --------------------------------------------------------------------------------------------------
    def tasks(self) -> tuple[SearchTaskRow, ...]:
        """The search tasks as they stand now, in order of position."""
        return self.attempt(lambda: self.storage.search_tasks(self.id))

    def task(self, search_task_id: int) -> SearchTaskRow:
        """A search task as it stands now: with the time spent and the baselines stored since it was leased."""
        return next(row for row in self.tasks() if row.id == search_task_id)

    def records(self, row: SearchTaskRow) -> tuple[TuningRecord, ...]:
        """The search task's own records, in the order stored."""
        return self.attempt(lambda: self.storage.records_of_task(row.id))

    def warm_start_records(self, row: SearchTaskRow) -> list[tuple[JsonObject, TuningRecord]]:
        """Records of other search tasks on the same target with the same rules, each with its workload."""
        target, threads = row.target_fingerprint, row.task.threads
        records = [
            record
            for rule in rules_of(row.task)
            for record in self.attempt(partial(self.storage.records_of_target, target, threads, rule.name))
        ]
        return [(workload, record) for workload, record in records if record.search_task_id != row.id]

    # -- writing --------------------------------------------------------------------------------------------------
    def warn(self, text: str) -> None:
        """Append ``text`` to the job's log."""
        log.warning("job %s: %s", self.id, text)
        self.append_events([NewEvent("log", {"level": "warning", "message": text})])

    def append_events(self, events: Sequence[NewEvent]) -> None:
        self.attempt(lambda: self.storage.append_events(self.lease, events))

    def save_library(self, row: SearchTaskRow, tuned: Tuned) -> None:
        """Store the library of a search task, which is done then."""
        self.attempt(lambda: self.storage.save_library(self.lease, row.id, tuned.files, tuned.manifest, tuned.dispatch))
        log.info("job %s: library %s for %s", self.id, tuned.manifest.get("digest", "")[:12], row.workload_key)

    def finish(self, state: JobState, error: str = "") -> JobState | None:
        """End the job in ``state``; None if that was not possible. Never raises."""
        try:
            return self.attempt(lambda: self.storage.finish_job(self.lease, state, error)).state
        except (LeaseLost, StorageUnavailable) as problem:
            log.warning("job %s could not be ended as %s: %s", self.id, state, problem)
            return None

    def release(self) -> None:
        release(self.storage, self.lease)


def release(storage: LeaseStorage, lease: Lease) -> None:
    """Give a job back, in one attempt: if it fails, the lease expires by itself. Never raises."""
    try:
        storage.release_job(lease)
        log.info("job %s was released", lease.job.id)
    except (LeaseLost, StorageUnavailable) as error:
        log.warning("job %s could not be released: %s", lease.job.id, error)
