"""A job under its lease: everything that its search reads and writes, retried while the database is unavailable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tuner.library.dispatcher import made_for
from tuner.program.job.jobspec import Budget, parse_budget
from tuner.program.job.policies import DEFAULT_POLICY
from tuner.program.language.workload import JsonObject
from tuner.records import TuningRecord
from tuner.schedule import rules_of
from tuner.search.comparison import Contender
from tuner.search.reuse import NOTHING, Knowledge, is_related
from tuner.search.summary import WALL_S, JobSummary, SearchSummary
from tuner.search.tuning import Tuned
from tuner.storage import Comparison, JobState, Lease, LeaseLost, NewEvent, SearchTaskRow, StorageUnavailable
from tuner.storage.sql import WorkerStorage
from worker.jobs.heartbeat import Heartbeat
from worker.jobs.retry import Retry

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_KNOWN = 64
"""Trials of earlier jobs that are counted: more make no difference to what is expected of a search."""
MAX_OTHERS, MAX_RELATED, MAX_RELATED_TARGETS = 6000, 1000, 8
"""Records of a rule that are read as priors: of this target, of a related one, and of how many related ones."""


@dataclass(frozen=True, slots=True)
class Served:
    """A library that is served: what another is compared with, and what it is stored as."""

    contender: Contender
    manifest: JsonObject
    dispatch: JsonObject
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A lease with its heartbeat and the storage behind it. For use from several threads.

    Every method but ``finish`` and ``release`` raises LeaseLost when another worker has the job, and
    StorageUnavailable when the retries are used up.
    """

    lease: Lease
    storage: WorkerStorage
    heartbeat: Heartbeat
    retry: Retry
    summarizing: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Held while the job's summary is changed and stored."""
    is_given_up: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set once the retries were used up."""

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
    def wall_s(self) -> float | None:
        """The wall time that its searches took, where several ran at once; as far as it was stored."""
        wall_s = self.lease.job.summary.get(WALL_S)
        return float(wall_s) if wall_s is not None else None

    def summary(self, position: int) -> SearchSummary:
        """The figures of a search task as this worker stored them last, or one before it."""
        begun = JobSummary.from_json(self.lease.job.summary).tasks.get(position)
        return begun or SearchSummary(trials_budget=self.budget.trials, seconds_budget=self.budget.seconds)

    @property
    def is_theory(self) -> bool:
        """Whether it is for the library that theory alone chooses: such a job reads no records."""
        return self.budget.trials == 0

    @property
    def policy(self) -> str:
        return str(self.lease.job.spec.get("policy", DEFAULT_POLICY))

    @property
    def seed(self) -> int:
        return int(self.lease.job.spec.get("seed", 0))

    def cancelling(self) -> bool:
        """Whether the job's cancellation was requested."""
        return self.heartbeat.cancelling()

    def lost(self) -> bool:
        """Whether the job is no longer this worker's."""
        return self.heartbeat.lost()

    def attempt(self, call: Callable[[], T]) -> T:
        """``call()``, retried while the database is unavailable and the lease is held; not retried once that was in
        vain for another call: its time is that of all."""
        if self.is_given_up.is_set():
            return call()
        try:
            return self.retry(call, self.heartbeat.lost)
        except StorageUnavailable:
            self.is_given_up.set()
            raise

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

    def known_trials(self, row: SearchTaskRow) -> int:
        """How many trials of earlier jobs a search starts from; MAX_KNOWN where there are more."""
        if self.is_theory:
            return 0
        place = row.workload_key, row.target_fingerprint, row.task.threads, row.task.cache
        records = self.attempt(lambda: self.storage.prior_records(*place, MAX_KNOWN))
        return min(MAX_KNOWN, sum(record.search_task_id != row.id for record in records))

    def knowledge(self, row: SearchTaskRow) -> Knowledge:
        """What earlier searches measured that this one may start from."""
        if self.is_theory:
            return NOTHING
        key, target = row.workload_key, row.target_fingerprint
        known = self.attempt(lambda: self.storage.prior_records(key, target, row.task.threads, row.task.cache))
        others = self._records_of_target(row, target, MAX_OTHERS)
        targets = self.attempt(self.storage.list_targets)
        related = [other for other in targets if is_related(row.task.known_target, other)][-MAX_RELATED_TARGETS:]
        return Knowledge(
            tuple(record for record in known if record.search_task_id != row.id),
            tuple((workload, record) for workload, record in others if record.workload_key != key),
            tuple(
                (workload, other, record)
                for other in related
                for workload, record in self._records_of_target(row, other.fingerprint, MAX_RELATED)
            ),
        )

    def _records_of_target(self, row: SearchTaskRow, target: str, limit: int) -> list[tuple[JsonObject, TuningRecord]]:
        """The newest successful records of the task's rules on a target, on as many threads, by the same protocol."""
        read, threads, cache = self.storage.records_of_target, row.task.threads, row.task.cache
        return [
            result
            for rule in rules_of(row.task)
            for result in self.attempt(partial(read, target, threads, rule.name, cache, limit))
        ]

    def served(self, row: SearchTaskRow) -> Served | None:
        """The library that is served for the task now. Raises ShapewrightError for one that cannot be read."""
        ranges = made_for(row.task)
        place = row.workload_key, row.target_fingerprint, row.task.threads, ranges, row.task.cache
        found = self.attempt(lambda: self.storage.incumbent(*place))
        if found is None:
            return None
        files = self.attempt(lambda: self.storage.artifact_files(found.digest))
        return Served(Contender.of(found.manifest, found.dispatch, files), found.manifest, found.dispatch, files)

    # -- writing --------------------------------------------------------------------------------------------------
    def warn(self, text: str) -> None:
        """Append ``text`` to the job's log, as a warning."""
        log.warning("job %s: %s", self.id, text)
        self.append_events([NewEvent("log", {"level": "warning", "message": text})])

    def append_events(self, events: Sequence[NewEvent]) -> None:
        self.attempt(lambda: self.storage.append_events(self.lease, events))

    def note(self, text: str) -> None:
        """Append ``text`` to the job's log."""
        log.info("job %s: %s", self.id, text)
        self.append_events([NewEvent("log", {"message": text})])

    def save_library(
        self, row: SearchTaskRow, tuned: Tuned, comparison: Comparison | None = None, *, done: bool = True
    ) -> None:
        """Store the library of a search task, which is ``done`` then."""
        stored = self.lease, row.id, tuned.files, tuned.manifest, tuned.dispatch
        self.attempt(lambda: self.storage.save_library(*stored, comparison=comparison, done=done))
        log.info("job %s: library %s for %s", self.id, tuned.manifest.get("digest", "")[:12], row.workload_key)

    def finish(self, state: JobState, error: str = "") -> JobState | None:
        """End the job in ``state``; None if that was not possible. Never raises."""
        try:
            return self.attempt(lambda: self.storage.finish_job(self.lease, state, error)).state
        except (LeaseLost, StorageUnavailable) as problem:
            log.warning("job %s could not be ended as %s: %s", self.id, state, problem)
            return None

    def fail_attempt(self, error: str) -> JobState | None:
        """Give the job back after a failed attempt; the state that it is in then, None if that was not possible. Never
        raises."""
        try:
            return self.attempt(lambda: self.storage.fail_attempt(self.lease, error)).state
        except (LeaseLost, StorageUnavailable) as problem:
            log.warning("job %s could not be given back: %s", self.id, problem)
            return None

    def release(self) -> None:
        release(self.storage, self.lease)


def release(storage: WorkerStorage, lease: Lease) -> None:
    """Give a job back, in one attempt: if it fails, the lease expires by itself. Never raises."""
    try:
        storage.release_job(lease)
        log.info("job %s was released", lease.job.id)
    except (LeaseLost, StorageUnavailable) as error:
        log.warning("job %s could not be released: %s", lease.job.id, error)
