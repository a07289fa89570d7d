"""Where a leased search leaves its results: in the database, under the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.program.workload import JsonObject
from tuner.records import Baselines, MeasureResult
from tuner.storage import Lease, NewEvent, SearchTaskRow, Storage
from worker.patience import Patience


class LeaseRecorder:
    """Records the results of one search task. A call returns when they are stored, however long the database is away
    (within ``patience``); a batch whose answer was lost is sent again, which doubles nothing."""

    def __init__(
        self, storage: Storage, lease: Lease, row: SearchTaskRow, patience: Patience, lost: Callable[[], bool]
    ) -> None:
        self._storage = storage
        self._lease = lease
        self._row = row
        self._patience = patience
        self._lost = lost

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float | None, summary: JsonObject
    ) -> None:
        """Events get the search task's ``position`` in its job. ``spent_s`` None leaves it as it stands. Raises
        LeaseLost, and StorageUnavailable when patience ends."""
        whole = job_summary(self._lease, self._row, summary)
        placed = [replace(event, data={**event.data, "position": self._row.position}) for event in events]
        self._patience(
            lambda: self._storage.append_results(self._lease, self._row.id, results, placed, spent_s, whole), self._lost
        )

    def baselines(self, found: Baselines) -> None:
        """Raises LeaseLost, and StorageUnavailable when patience ends."""
        self._patience(lambda: self._storage.save_baselines(self._lease, self._row.id, found), self._lost)


def job_summary(lease: Lease, row: SearchTaskRow, summary: JsonObject) -> JsonObject:
    """A job's summary when the one of a search task is new: the task's own if it is the only one, else one for each
    task by its position."""
    if len(lease.tasks) == 1:
        return summary
    tasks = {**lease.job.summary.get("tasks", {}), str(row.position): summary}
    # Later tasks of this lease build on what earlier ones found.
    lease.job.summary["tasks"] = tasks
    return {"tasks": tasks}
