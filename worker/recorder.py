"""Recording a leased search's results in the database, under the lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.program.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.storage import Lease, NewEvent, SearchTaskRow
from worker.leased_job import LeasedJob


class LeaseRecorder:
    """Records the results of one search task. A call returns when they are stored, however long the database is
    unavailable (within the job's retries); a batch whose answer was lost is sent again, which duplicates nothing."""

    def __init__(self, job: LeasedJob, row: SearchTaskRow) -> None:
        self._job = job
        self._row = row

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float | None, summary: JsonObject
    ) -> None:
        """Events get the search task's ``position`` in its job. ``spent_s`` None leaves the stored value unchanged.
        Raises LeaseLost, and StorageUnavailable when the retries are used up."""
        job, row = self._job, self._row
        merged = job_summary(job.lease, row, summary)
        numbered = [replace(event, data={**event.data, "position": row.position}) for event in events]
        job.attempt(lambda: job.storage.append_results(job.lease, row.id, results, numbered, spent_s, merged))

    def baselines(self, found: Baselines) -> None:
        """Raises as ``record`` does."""
        job = self._job
        job.attempt(lambda: job.storage.save_baselines(job.lease, self._row.id, found))


def job_summary(lease: Lease, row: SearchTaskRow, summary: JsonObject) -> JsonObject:
    """A job's summary when the one of a search task is new: the task's own if it is the only one, else one for each
    task by its position."""
    if len(lease.tasks) == 1:
        return summary
    tasks = {**lease.job.summary.get("tasks", {}), str(row.position): summary}
    # Summaries of later tasks of this lease are added to those of earlier ones.
    lease.job.summary["tasks"] = tasks
    return {"tasks": tasks}
