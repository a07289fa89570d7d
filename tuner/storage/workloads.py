"""Workloads, and the search tasks that there are for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.program.language.workload import JsonObject
from tuner.storage.jobs import SearchTaskRow
from tuner.storage.paging import Page


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


class WorkloadStorage(Protocol):
    """Finding workloads and their search tasks."""

    def list_workloads(self, cursor: str | None = None, limit: int = 50) -> Page[WorkloadRow]:
        """Newest first."""

    def get_workload(self, workload_key: str) -> WorkloadRow:
        """Raises NotFound."""

    def latest_task(self, workload_key: str, target_fingerprint: str | None = None) -> SearchTaskRow:
        """The newest search task for a workload, one that has a library if there is any. Raises NotFound."""

    def tasks_of_workload(self, workload_key: str, limit: int = 200) -> tuple[SearchTaskRow, ...]:
        """The newest search tasks for a workload, newest first. Raises NotFound."""
