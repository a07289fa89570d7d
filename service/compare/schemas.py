"""The schema of a comparison of jobs. Times are in seconds."""

from __future__ import annotations

from pydantic import BaseModel

from service.jobs.schemas import JobOut, OutcomeOut
from service.schemas import FromAttributes


class ComparedJob(JobOut):
    """A job of a comparison. ``elapsed_s`` is of its searches together, null before the first begins."""

    tasks: int
    elapsed_s: float | None
    outcome: OutcomeOut


class RatioOut(FromAttributes):
    """How many times as fast as the first job, with a 95 % interval. ``verdict``: faster, equal or slower."""

    ratio: float
    low: float
    high: float
    verdict: str


class AtShapeOut(FromAttributes):
    """What one job measured at a shape; null where it did not. ``ratio`` is null of the first job, too."""

    job_id: str
    latency_s: float | None
    kernel_id: str | None
    readings: int
    ratio: RatioOut | None


class ShapeLineOut(FromAttributes):
    """One shape, with an entry for each job of the pairing in the order of its ``totals``."""

    shape: dict[str, int]
    weight: float
    jobs: list[AtShapeOut]


class TotalOut(FromAttributes):
    """The weighted time of the ``shapes`` that this job and the first of the pairing both measured."""

    job_id: str
    position: int
    kernels: int | None
    shapes: int
    total_s: float | None
    ratio: RatioOut | None


class PairingOut(FromAttributes):
    """Equal search tasks of several jobs: one workload, one target, one number of threads, one state of the caches.
    The first of ``totals`` is what the others are compared with."""

    workload_key: str
    workload: str
    target_fingerprint: str
    threads: int
    cache: str
    totals: list[TotalOut]
    shapes: list[ShapeLineOut]


class UnlikeOut(FromAttributes):
    """A search task that no other job has, and what is unlike."""

    job_id: str
    position: int
    workload_key: str
    workload: str
    target_fingerprint: str
    threads: int
    cache: str
    reason: str


class CompareOut(BaseModel):
    """Jobs side by side, in the order in which they were named. ``method`` says how the intervals are made.

    ``left_out``: equal workloads that are not compared, because there are too many for one answer.
    """

    jobs: list[ComparedJob]
    pairings: list[PairingOut]
    unlike: list[UnlikeOut]
    left_out: int
    method: str
