"""Responses of the job routes. Times are the database's, ISO 8601 in UTC; durations end in ``_s``, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from tuner.records import TuningRecord
from tuner.storage import Job, Page, SearchTaskRow


class JobOut(BaseModel):
    """A job in a list. ``trials`` counts those recorded so far, failed ones included."""

    id: str
    name: str
    state: str
    device: str
    owner: str
    worker: str | None
    trials: int
    error: str
    created_at: str
    started_at: str | None
    ended_at: str | None

    @staticmethod
    def of(job: Job) -> JobOut:
        return JobOut(**_facts(job))


class SearchTaskOut(BaseModel):
    """One search task of a job: a workload on a target. ``count`` says how often the model holds the workload.

    ``baselines`` are what its kernels are compared with: NumPy's ``points`` and the device's ``roof``, null before they
    are measured.
    """

    id: int
    position: int
    count: int
    workload_key: str
    workload: str
    target_fingerprint: str
    threads: int
    task: dict[str, Any]
    spent_s: float
    done: bool
    baselines: dict[str, Any]

    @staticmethod
    def of(row: SearchTaskRow) -> SearchTaskOut:
        return SearchTaskOut(
            id=row.id,
            position=row.position,
            count=row.count,
            workload_key=row.workload_key,
            workload=str(row.task.workload),
            target_fingerprint=row.target_fingerprint,
            threads=row.task.threads,
            task=row.task.to_json(),
            spent_s=row.spent_s,
            done=row.done,
            baselines=row.baselines.to_json(),
        )


class JobDetail(JobOut):
    """A job in full: as submitted (``spec``), its search tasks, and the results so far (``summary``)."""

    workload_keys: list[str]
    spec: dict[str, Any]
    summary: dict[str, Any]
    tasks: list[SearchTaskOut]

    @staticmethod
    def complete(job: Job, tasks: Sequence[SearchTaskRow]) -> JobDetail:
        keys = list(dict.fromkeys(row.workload_key for row in tasks))
        rows = [SearchTaskOut.of(row) for row in tasks]
        return JobDetail(**_facts(job), workload_keys=keys, spec=job.spec, summary=job.summary, tasks=rows)


class JobPage(BaseModel):
    """A part of the list of jobs, newest first. ``cursor`` asks for the next part; null at the end."""

    items: list[JobOut]
    cursor: str | None

    @staticmethod
    def of(page: Page[Job]) -> JobPage:
        return JobPage(items=[JobOut.of(job) for job in page.items], cursor=page.cursor)


class TrialOut(BaseModel):
    """One micro-kernel built and measured on one instance: a latency, or the kind of its failure and a message."""

    seq: int
    job_id: str | None
    search_task_id: int | None
    workload_key: str
    target_fingerprint: str
    threads: int
    protocol: str
    provenance: str
    created_at: str
    kernel: dict[str, Any]
    kernel_id: str
    instance: dict[str, float]
    latency_s: float | None
    samples_s: list[float]
    error_kind: str | None
    error: str
    build_s: float
    run_s: float
    predicted_s: float | None
    round: int
    phase: str
    attempt: int
    anchor_s: float | None
    device: str | None

    @staticmethod
    def of(record: TuningRecord) -> TrialOut:
        return TrialOut(
            seq=record.seq,
            job_id=record.job_id,
            search_task_id=record.search_task_id,
            workload_key=record.workload_key,
            target_fingerprint=record.target_fingerprint,
            threads=record.threads,
            protocol=record.protocol,
            provenance=record.provenance,
            created_at=record.created_at,
            **record.result.to_json(),
        )


class TrialList(BaseModel):
    """Trials in the order they were stored. ``after`` asks for those that come later: the same as given if none did."""

    items: list[TrialOut]
    after: int


def _facts(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "device": job.device,
        "owner": job.owner,
        "worker": job.worker,
        "trials": job.trials,
        "error": job.error,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }
