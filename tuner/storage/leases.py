"""Working on a job: what only the holder of its lease may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.program.language.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.storage.events import NewEvent
from tuner.storage.jobs import Job, JobState, SearchTaskRow
from tuner.storage.libraries import Artifact, Comparison


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until it expires; ``epoch`` distinguishes this holder from all earlier ones."""

    job: Job
    tasks: tuple[SearchTaskRow, ...]
    worker: str
    epoch: int


class LeaseStorage(Protocol):
    """Leasing jobs, and changing a job under its lease."""

    def lease_job(self, worker: str, lease_s: float, device_keys: Sequence[str] | None = None) -> Lease | None:
        """Take the oldest WAITING job, or one whose lease has expired, and make it RUNNING with the next epoch.

        A lease that has expired counts as a failed attempt (see ``fail_attempt``). A CANCELLING job whose lease has
        expired becomes CANCELLED and is not handed out. ``device_keys`` restricts to jobs for those devices. None if
        there is no such job.
        """

    def heartbeat(self, lease: Lease, lease_s: float) -> JobState:
        """Extend the lease; returns the job's state (RUNNING or CANCELLING). Raises LeaseLost."""

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
        """Store what the task's kernels are compared with, in place of earlier ones, and an event of it.

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
        comparison: Comparison | None = None,
        done: bool = True,
    ) -> Artifact:
        """Store a built library and its dispatcher, and mark the search task done. Raises LeaseLost.

        ``done`` is False for a search that was cancelled: whoever resumes the job goes on with it.

        ``digest`` of the artifact is ``manifest["digest"]``. ``comparison`` with what was served: if the new library
        covers as much and wins it is served from now on, and the other one superseded; if it covers no more and does
        not win it is superseded itself. Aliases whose rule it fulfils name it. Without a comparison it stands beside
        the others. ``done`` is False for a search that was cancelled: whoever resumes the job goes on with it.
        """

    def finish_job(self, lease: Lease, state: JobState, error: str = "", summary: JsonObject | None = None) -> Job:
        """End the job (COMPLETED, CANCELLED or FAILED) and append the event of it. Raises LeaseLost."""

    def release_job(self, lease: Lease) -> None:
        """Release an unfinished job: WAITING again (CANCELLED if it was CANCELLING). Raises LeaseLost."""

    def fail_attempt(self, lease: Lease, error: str) -> Job:
        """Release a job that could not be searched now, with the reason.

        WAITING again, after a while that grows with each attempt that fails; FAILED after MAX_ATTEMPTS in a row with no
        trial recorded in between; CANCELLED if it was CANCELLING. Raises LeaseLost.
        """

    def end_abandoned(self) -> None:
        """End jobs that are being cancelled and whose worker was lost, whether there is another one or not."""
