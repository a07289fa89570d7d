"""Responses of the workload routes. Latencies in seconds."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tuner.storage import Page, WorkloadRow


class WorkloadOut(BaseModel):
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

    @staticmethod
    def of(row: WorkloadRow) -> WorkloadOut:
        return WorkloadOut(
            key=row.key,
            workload=row.workload,
            label=row.label,
            created_at=row.created_at,
            jobs=row.jobs,
            records=row.records,
            targets=list(row.targets),
        )


class WorkloadPage(BaseModel):
    """A part of the list of workloads, newest first. ``cursor`` asks for the next part; null at the end."""

    items: list[WorkloadOut]
    cursor: str | None

    @staticmethod
    def of(page: Page[WorkloadRow]) -> WorkloadPage:
        return WorkloadPage(items=[WorkloadOut.of(row) for row in page.items], cursor=page.cursor)
