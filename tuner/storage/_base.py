"""The Storage protocol: what the tuning database does for the service, the workers and the command line.

One synchronous interface; SQL stands behind it, and nothing above it knows. Who may change what: anyone may create a
job, ask for its cancellation or its resumption; everything else about a job changes only through a ``Lease``, and a
lease that has been lost (its epoch is no longer the job's) raises ``LeaseLost`` and writes nothing. Every method is
one transaction: it happened whole or not at all. All times are the database's own clock, in UTC, ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from tuner.errors import ShapewrightError
from tuner.program.jobspec import JobSpec
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject
from tuner.records import NO_BASELINES, Baselines, MeasureResult, TuningRecord

T = TypeVar("T")


class StorageUnavailable(ShapewrightError):
    """The database cannot be reached or is out of step; nothing was written. Try again later."""


class NotFound(ShapewrightError, KeyError):
    """No row of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class Conflict(ShapewrightError):
    """The request does not fit the state that the row is in."""


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, for another body."""


class LeaseLost(ShapewrightError):
    """Another worker has the job, or the job has ended. Stop working on it; nothing was written."""


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
    """A submitted job as it stands. ``spec`` is the job file as given; ``summary`` is filled in as the search goes."""

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


@dataclass(frozen=True, slots=True)
class SearchTaskRow:
    """One search task of a job. ``spent_s`` is wall time already charged to the budget, by every worker that had it;
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


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until it expires; ``epoch`` tells this holder from every earlier one."""

    job: Job
    tasks: tuple[SearchTaskRow, ...]
    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append: ``kind`` is one of state, trials, progress, log, baselines, library; ``data`` is what it
    carries."""

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


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built library: the files that ``pull`` writes, by name, and the facts that name it.

    ``manifest`` and ``dispatch`` are the parsed content of the files manifest.json and dispatch.json.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    job_id: str | None
    manifest: JsonObject
    dispatch: JsonObject
    created_at: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that has registered: its tracker key, its target and how it is."""

    id: str
    key: str
    target: Target
    state: str
    description: JsonObject
    registered_at: str
    seen_at: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    created_at: str
    revoked_at: str | None


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """A workload that some job has been submitted for, with how much is known about it.

    ``workload`` is its canonical form, which ``workload_from_json`` reads; ``label`` is what the first job called it.
    """

    key: str
    workload: JsonObject
    label: str
    created_at: str
    jobs: int
    records: int
    targets: tuple[str, ...]


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
    """A part of a table of jobs, and how many there are in all."""

    items: tuple[Job, ...]
    total: int


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A trial as its device saw it: when it was stored, for which job, and how fast the device ran (its anchor)."""

    device: str
    job_id: str
    job_name: str
    at: str
    anchor_s: float | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, newest first unless said otherwise; ``cursor`` asks for the next part, None at the end."""

    items: tuple[T, ...]
    cursor: str | None


class Storage(Protocol):
    """The tuning database. Safe to use from several threads and processes at once."""

    # -- life -----------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise StorageUnavailable unless the database answers and its schema is the one this code wants."""

    def close(self) -> None:
        """Give back every connection."""

    # -- jobs, for anyone -----------------------------------------------------------------------------------------
    def create_job(self, spec: JobSpec, owner: str = "", idempotency_key: str | None = None) -> tuple[Job, bool]:
        """Store a job in state WAITING with its search tasks and workloads, and its first event.

        Every task of ``spec`` has a target. Returns the job and whether it is new: the same owner with the same
        idempotency key and an equal ``spec.source`` gets the earlier job. Raises IdempotencyMismatch for another body.
        """

    def get_job(self, job_id: str) -> Job:
        """Raises NotFound."""

    def list_jobs(self, cursor: str | None = None, state: JobState | None = None, limit: int = 50) -> Page[Job]:
        """Newest first. A cursor that is not ours raises InvalidInput on field ``cursor``."""

    def find_jobs(self, query: JobQuery) -> JobTable:
        """Jobs as people look for them: any page of any order; jobs that are alike in it come newest first."""

    def search_tasks(self, job_id: str) -> tuple[SearchTaskRow, ...]:
        """In order of position. Raises NotFound."""

    def tasks_of_workload(self, workload_key: str, limit: int = 200) -> tuple[SearchTaskRow, ...]:
        """The newest search tasks for a workload, newest first. Raises NotFound."""

    def request_cancel(self, job_id: str) -> Job:
        """WAITING becomes CANCELLED at once, RUNNING becomes CANCELLING; CANCELLING stays.

        Raises Conflict if the job has ended, NotFound.
        """

    def resume_job(self, job_id: str) -> Job:
        """A CANCELLED or FAILED job goes back to WAITING, its records kept and its spent time too.

        Raises Conflict in any other state, NotFound.
        """

    # -- jobs, for the worker that leases -------------------------------------------------------------------------
    def lease_job(self, worker: str, lease_s: float, device_keys: Sequence[str] | None = None) -> Lease | None:
        """Take the oldest WAITING job, or one whose lease has expired, and make it RUNNING with the next epoch.

        A CANCELLING job whose lease has expired becomes CANCELLED and is not handed out. ``device_keys`` restricts
        to jobs for those devices. None if there is nothing to do.
        """

    def heartbeat(self, lease: Lease, lease_s: float) -> JobState:
        """Extend the lease and tell the job's state (RUNNING or CANCELLING). Raises LeaseLost."""

    def append_results(
        self,
        lease: Lease,
        search_task_id: int,
        results: Sequence[MeasureResult],
        events: Sequence[NewEvent] = (),
        spent_s: float | None = None,
        summary: JsonObject | None = None,
    ) -> None:
        """Store results and events in one transaction, and set the task's spent time and the job's summary if given.

        A result whose (search task, kernel, instance, attempt) is stored already is left as it is: sending a batch
        twice doubles nothing. Instances are in the task's shape variables. Raises LeaseLost, and InvalidInput on field
        ``shape`` for an instance of other variables.
        """

    def save_baselines(self, lease: Lease, search_task_id: int, baselines: Baselines) -> None:
        """Store what the task's kernels are compared with, in the place of what was there, and an event that says so.

        The same ones again change nothing and append no event. Raises LeaseLost.
        """

    def append_events(self, lease: Lease, events: Sequence[NewEvent]) -> None:
        """Raises LeaseLost."""

    def save_library(
        self,
        lease: Lease,
        search_task_id: int,
        files: Mapping[str, bytes],
        manifest: JsonObject,
        dispatch: JsonObject,
        events: Sequence[NewEvent] = (),
    ) -> Artifact:
        """Store a built library and its dispatcher, and mark the search task done. Raises LeaseLost.

        ``digest`` of the artifact is ``manifest["digest"]``.
        """

    def finish_job(self, lease: Lease, state: JobState, error: str = "", summary: JsonObject | None = None) -> Job:
        """End the job (COMPLETED, CANCELLED or FAILED) and append the event of it. Raises LeaseLost."""

    def release_job(self, lease: Lease) -> None:
        """Give an unfinished job back: WAITING again (CANCELLED if it was CANCELLING). Raises LeaseLost."""

    # -- events and trials ----------------------------------------------------------------------------------------
    def list_events(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        """Events with seq above ``after``, in order. Raises NotFound."""

    def newest_events(self, job_id: str, kinds: Sequence[str], limit: int = 200) -> tuple[JobEvent, ...]:
        """The last events of these kinds, in order. Raises NotFound."""

    def last_event(self, job_id: str) -> int:
        """The seq of the job's newest event. Raises NotFound."""

    def list_trials(
        self, job_id: str, after: int = 0, limit: int = 1000, search_task_id: int | None = None
    ) -> tuple[TuningRecord, ...]:
        """Records of a job with ``seq`` (the row's number) above ``after``, in order. Raises NotFound.

        Instances as of ``records_of_task``.
        """

    # -- what the records know ------------------------------------------------------------------------------------
    def records_of_task(self, search_task_id: int) -> tuple[TuningRecord, ...]:
        """Everything a policy needs to be rebuilt, in the order it was stored.

        Instances are in the task's shape variables; one that is none of the task's is in the workload's symbols.
        """

    def records_of_workload(
        self, workload_key: str, target_fingerprint: str, threads: int = 1, limit: int = 100_000
    ) -> tuple[TuningRecord, ...]:
        """Successful and failed records of any job for this workload on this target, in the order stored.

        Instances are values of the workload's symbols, as in everything that is asked across jobs.
        """

    def records_of_target(
        self, target_fingerprint: str, threads: int, rule: str, limit: int = 20_000
    ) -> tuple[tuple[JsonObject, TuningRecord], ...]:
        """The newest successful records of a rule on a target, each with its workload in canonical form, whose shape
        variables are the symbols that the record gives: a model starts from them."""

    def list_workloads(self, cursor: str | None = None, limit: int = 50) -> Page[WorkloadRow]:
        """Newest first."""

    def get_workload(self, workload_key: str) -> WorkloadRow:
        """Raises NotFound."""

    def latest_task(self, workload_key: str, target_fingerprint: str | None = None) -> SearchTaskRow:
        """The newest search task for a workload, one that has a library if there is any. Raises NotFound."""

    def best_record(
        self, workload_key: str, target_fingerprint: str, threads: int, instance_key: str
    ) -> TuningRecord | None:
        """The fastest record for exactly this instance (``format_shape`` of the symbols' values); None
        if there is none.

        Of kernels that were never found wrong, and never crashed, at any instance of the workload on this target.
        """

    # -- libraries ------------------------------------------------------------------------------------------------
    def latest_artifact(
        self,
        workload_key: str,
        target_fingerprint: str | None = None,
        job_id: str | None = None,
        digest: str | None = None,
    ) -> Artifact:
        """The newest library for a workload that fits every given restriction. Raises NotFound."""

    def artifact_files(self, digest: str) -> dict[str, bytes]:
        """The files of a library, by name. Raises NotFound."""

    # -- devices and keys -----------------------------------------------------------------------------------------
    def register_device(self, device_id: str, key: str, target: Target, description: JsonObject) -> Device:
        """Add a device, or renew the one of that id (its target may have changed); ``seen_at`` becomes now."""

    def list_devices(self) -> tuple[Device, ...]:
        """In order of key and id."""

    def device_readings(self, limit: int = 20_000) -> tuple[DeviceReading, ...]:
        """Of the newest ``limit`` trials those whose device is known, oldest first."""

    def create_key(self, name: str, secret: str | None = None) -> tuple[ApiKey, str]:
        """A new API key and its secret, shown this once: only a hash is stored. Names need not be unique."""

    def list_keys(self) -> tuple[ApiKey, ...]: ...

    def revoke_key(self, key_id: str) -> ApiKey:
        """Raises NotFound."""

    def find_key(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is unknown or revoked."""

    # -- signing in -----------------------------------------------------------------------------------------------
    def create_login(self, name: str, ttl_s: float) -> str:
        """A one-time token, 256 random bits, good for ``ttl_s`` seconds; shown this once: only a hash is stored.

        ``name`` is what the key will be called that ``redeem_login`` makes of it.
        """

    def redeem_login(self, token: str) -> tuple[ApiKey, str] | None:
        """Use a token up: a new API key and its secret. None if it is unknown, was used before, or has expired.

        Of several callers at once exactly one gets a key.
        """

    def end_login(self, key_id: str) -> bool:
        """Revoke a key that ``redeem_login`` made; False, and nothing changed, if this key was made otherwise."""

    def job_counts(self) -> Mapping[str, int]:
        """Jobs by state, every state named, and ``trials``: those of all jobs together."""

    def counts(self) -> Mapping[str, Any]:
        """Numbers for /metrics: jobs by state, records, events, devices."""
