"""Responses of the workload routes. Latencies in seconds."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.jobs.schemas import JobOut
from service.schemas import FromAttributes, PageOut
from tuner.search.summary import JobSummary
from tuner.storage import Job, SearchTaskRow


class WorkloadOut(FromAttributes):
    """A workload that some job was submitted for, and how much is known about it.

    ``workload`` is its canonical form, as a job file takes it; ``label`` is what the first job called it.
    """

    key: str
    workload: dict[str, Any]
    label: str
    created_at: str
    jobs: int
    records: int
    targets: list[str]


class WorkloadPage(PageOut[WorkloadOut]):
    """A part of the list of workloads, newest first. ``cursor`` asks for the next part; null at the end."""


class WorkloadJob(JobOut):
    """A job that searches a workload, and that search: ``progress`` is its summary, null before it begins."""

    position: int
    target_fingerprint: str
    threads: int
    cache: str
    progress: dict[str, Any] | None

    @staticmethod
    def of(job: Job, row: SearchTaskRow) -> WorkloadJob:
        summary = JobSummary.from_json(job.summary).tasks.get(row.position)
        return WorkloadJob(
            **dict(JobOut.model_validate(job)),
            position=row.position,
            target_fingerprint=row.target_fingerprint,
            threads=row.task.threads,
            cache=row.task.cache.value,
            progress=summary.to_json() if summary else None,
        )


class WorkloadJobs(BaseModel):
    """The newest jobs that search a workload."""

    items: list[WorkloadJob]
