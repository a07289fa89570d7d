"""A workload as its page shows it: its searches, by target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.dashboard import presenters
from service.dashboard.presenters import JobLine
from service.libraries.service import served_tasks
from tuner.storage import SearchTaskRow
from tuner.storage.sql import ClientStorage, Storage


@dataclass(frozen=True, slots=True)
class Searched:
    """One search task for the workload, in the job that it is part of."""

    line: JobLine
    row: SearchTaskRow
    gain: float | None
    kernels: int | None


@dataclass(frozen=True, slots=True)
class OnTarget:
    """All searches for the workload on one target, newest first. ``served``: the one whose library is."""

    fingerprint: str
    searches: tuple[Searched, ...]
    served: SearchTaskRow | None


def workload_of(storage: Storage, key: str) -> dict[str, Any]:
    """Raises NotFound."""
    known, rows = storage.get_workload(key), storage.tasks_of_workload(key)
    keys = storage.list_keys()
    searched = [_searched(storage, row, keys) for row in rows]
    served = served_tasks(storage, key)
    targets = {each.row.target_fingerprint: None for each in searched}
    return {
        "known": known,
        "targets": [
            OnTarget(name, tuple(each for each in searched if each.row.target_fingerprint == name), served.get(name))
            for name in targets
        ],
    }


def _searched(storage: ClientStorage, row: SearchTaskRow, keys: Any) -> Searched:
    job = storage.get_job(row.job_id)
    summary = presenters.summary_of(job, row.position)
    line = presenters.lines_of([job], keys)[0]
    speedup, kernels = (summary.outcome.speedup_vs_default, summary.kernels) if summary else (None, None)
    return Searched(line, row, speedup, kernels)
