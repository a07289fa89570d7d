"""Jobs, their search tasks and events, the lease under which a worker changes one, and parts of lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.records import NO_BASELINES, Baselines

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append: ``kind`` is one of state, trials, progress, log, baselines, reused, importance, library;
    ``data`` is what it carries."""

    kind: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job. ``seq`` counts from 1 without gaps within the job, in commit order."""

    job_id: str
    seq: int
    kind: str
    data: JsonObject
    created_at: str


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
    tags: tuple[str, ...] = ()
    """In the order in which they were given."""
    note: str = ""


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
    """A part of a table of jobs: those that ``text`` finds (tuner.storage.filters), ``offset`` rows on."""

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


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A search of the list of jobs that an owner keeps under a name."""

    name: str
    query: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until it expires; ``epoch`` distinguishes this holder from all earlier ones."""

    job: Job
    tasks: tuple[SearchTaskRow, ...]
    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, newest first unless said otherwise; ``cursor`` asks for the next part, None at the end."""

    items: tuple[T, ...]
    cursor: str | None
