"""Recording a leased search's results in the database, under the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.program.language.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.search.summary import WALL_S, JobSummary, SearchSummary
from tuner.storage import Lease, NewEvent, SearchTaskRow
from worker.jobs.leased_job import LeasedJob


class LeaseRecorder:
    """Records the results of one search task. A call returns when they are stored, however long the database is
    unavailable (within the job's retries); a batch whose answer was lost is sent again, which duplicates nothing."""

    def __init__(self, job: LeasedJob, row: SearchTaskRow, wall_s: Callable[[], float | None] = lambda: None) -> None:
        """``wall_s``: the job's wall time so far, where that is not what its searches took together."""
        self._job, self._row, self._wall_s = job, row, wall_s

    def record(
        self,
        results: Sequence[MeasureResult],
        events: Sequence[NewEvent],
        spent_s: float | None,
        summary: SearchSummary,
    ) -> None:
        """Events get the search task's ``position`` in its job. ``spent_s`` None leaves the stored value unchanged.
        Raises LeaseLost, and StorageUnavailable when the retries are used up."""
        job, row = self._job, self._row
        numbered = [replace(event, data={**event.data, "position": row.position}) for event in events]
        # The summary is of all search tasks: what another lane adds to it must not be stored over.
        with job.summarizing:
            merged = job_summary(job.lease, row, summary, self._wall_s())
            job.attempt(lambda: job.storage.append_results(job.lease, row.id, results, numbered, spent_s, merged))

    def record_baselines(self, baselines: Baselines) -> None:
        """Raises as ``record`` does."""
        job = self._job
        job.attempt(lambda: job.storage.save_baselines(job.lease, self._row.id, baselines))


def job_summary(lease: Lease, row: SearchTaskRow, summary: SearchSummary, wall_s: float | None) -> JsonObject:
    """The job's summary with the new one of this search task, and its wall time where it has one of its own."""
    whole = JobSummary.from_json(lease.job.summary).replaced(row.position, summary).to_json(len(lease.tasks))
    if wall_s is not None:
        whole[WALL_S] = round(wall_s, 3)
    # Summaries of later tasks of this lease are added to it.
    lease.job.summary.update(whole)
    return whole
