"""Jobs and their search tasks, as anyone may read and request them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tuner.program.job.jobspec import JobSpec
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.records import NO_BASELINES, Baselines
from tuner.storage.access import NO_QUOTA, Quota
from tuner.storage.events import EventStorage
from tuner.storage.paging import Page

MAX_ATTEMPTS = 4
"""Attempts in a row that may fail with no trial recorded; the job is FAILED after them."""


class JobState(StrEnum):
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job. ``spec`` is the job file as submitted; ``summary`` is updated during the search."""

    id: str
    name: str
    owner: str
    state: JobState
    device: str
    spec: JsonObject
    created_at: str
    started_at: str | None
    ended_at: str | None
    epoch: int
    worker: str | None
    trials: int
    """Trials recorded so far, failed ones included."""
    error: str
    summary: JsonObject
    priority: int = 0
    """Jobs of a higher one are leased first, whoever owns them."""
    failed_attempts: int = 0
    """Failed attempts in a row, with no trial recorded in between."""
    not_before: str | None = None
    """When a WAITING job may be tried again; None for at once."""


@dataclass(frozen=True, slots=True)
class SearchTaskRow:
    """One search task of a job. ``spent_s`` is wall time already charged to the budget, by every worker that leased it;
    ``baselines`` are empty until they have been measured."""

    id: int
    job_id: str
    position: int
    count: int
    workload_key: str
    target_fingerprint: str
    task: SearchTask
    spent_s: float
    done: bool
    baselines: Baselines = NO_BASELINES


class JobOrder(StrEnum):
    """What a table of jobs is ordered by."""

    CREATED = "created"
    NAME = "name"
    STATE = "state"
    TRIALS = "trials"


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A part of a table of jobs: those whose name, id or owner holds ``text`` (in any case), ``offset`` rows on."""

    text: str = ""
    state: JobState | None = None
    order: JobOrder = JobOrder.CREATED
    descending: bool = True
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class JobTable:
    """A part of a table of jobs, and the number of all."""

    items: tuple[Job, ...]
    total: int


class JobStorage(EventStorage, Protocol):
    """Submitting, finding, cancelling and resuming jobs, and reading their events."""

    def create_job(
        self,
        spec: JobSpec,
        owner: str = "",
        idempotency_key: str | None = None,
        *,
        actor: str = "",
        quota: Quota = NO_QUOTA,
    ) -> tuple[Job, bool]:
        """Store a job in state WAITING with its search tasks and workloads, and its first event.

        Every task of ``spec`` has a target. Returns the job and whether it is new: the same owner with the same
        idempotency key and an equal ``spec.source`` gets the earlier job. Raises IdempotencyMismatch for another body,
        QuotaExceeded if the owner's jobs would use more than ``quota``. ``actor`` is the API key that submits it: the
        audit trail names it, and it signs what goes to the job's webhook.
        """

    def get_job(self, job_id: str) -> Job:
        """Raises NotFound."""

    def list_jobs(
        self, cursor: str | None = None, state: JobState | None = None, limit: int = 50, *, whole: bool = True
    ) -> Page[Job]:
        """Newest first. A cursor that is not ours raises InvalidInput on field ``cursor``.

        ``spec`` and ``summary`` may be large; unless ``whole`` they are not read, and empty.
        """

    def find_jobs(self, query: JobQuery) -> JobTable:
        """Jobs in any order, any part of the list; jobs that are equal in that order are newest first."""

    def job_counts(self) -> Mapping[str, int]:
        """Jobs by state, every state named, and ``trials``: those of all jobs together."""

    def search_tasks(self, job_id: str, first: int = 0, limit: int | None = None) -> tuple[SearchTaskRow, ...]:
        """Up to ``limit`` search tasks, by position, from ``first`` on. Raises NotFound, CorruptData."""

    def task_keys(self, job_id: str) -> tuple[str, ...]:
        """The workload's key of every search task, in order of position. Raises NotFound."""

    def request_cancel(self, job_id: str, actor: str = "") -> Job:
        """WAITING becomes CANCELLED at once, RUNNING becomes CANCELLING; CANCELLING stays.

        Raises Conflict if the job has ended, NotFound.
        """

    def resume_job(self, job_id: str, actor: str = "", quota: Quota = NO_QUOTA) -> Job:
        """A CANCELLED or FAILED job goes back to WAITING, keeping its records and its spent time.

        Raises Conflict in any other state, NotFound, QuotaExceeded.
        """
