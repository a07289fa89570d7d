"""Responses of the workload routes. Latencies in seconds."""

from __future__ import annotations

from typing import Any

from service.schemas import FromAttributes, PageOut


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
