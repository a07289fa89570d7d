"""Comparisons of jobs: which of their search tasks are equal, read and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.compare.schemas import ComparedJob, CompareOut, PairingOut, UnlikeOut
from service.figures.searches import Searches
from service.jobs.outcome import outcome_of
from service.jobs.schemas import JobOut, OutcomeOut
from tuner.errors import InvalidInput
from tuner.figures.side_by_side import Likeness, Side, likeness, side_by_side
from tuner.figures.view import SearchView
from tuner.search.summary import JobSummary
from tuner.storage import Job, SearchTaskRow
from tuner.storage.sql import ClientStorage

MAX_JOBS = 8
MAX_READ = 64
"""Search tasks whose trials are read for one comparison."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The jobs of a comparison with their search tasks, and the searches that are equal, as far as they are read.

    ``version`` changes whenever the comparison may.
    """

    jobs: tuple[tuple[Job, Sequence[SearchTaskRow]], ...]
    sides: tuple[Side, ...]
    left_out: int
    version: str


def compared(jobs: ClientStorage, searches: Searches, job_ids: Sequence[str]) -> Compared:
    """Read what 2 to MAX_JOBS named jobs have in common. Raises InvalidInput for other numbers, NotFound."""
    wanted = list(dict.fromkeys(job_ids))
    if not 2 <= len(wanted) <= MAX_JOBS:
        remedy = f"the ids of 2 to {MAX_JOBS} different jobs"
        raise InvalidInput("job", f"{len(wanted)} different jobs cannot be compared", remedy)
    found = tuple((jobs.get_job(job_id), jobs.search_tasks(job_id)) for job_id in wanted)
    shared = _shared(found)
    kept = dict.fromkeys(list(shared)[: MAX_READ // len(found)])
    sides, versions = [], []
    for job, rows in found:
        for row in rows:
            key = likeness(row.task)
            if key in kept:
                view, version = searches.view(job, row)
                versions.append(version)
                sides.append(Side(job.id, row.position, view))
            elif key not in shared:
                # Nothing of it is compared: its trials need not be read.
                sides.append(Side(job.id, row.position, SearchView(row.task)))
    states = [f"{job.id}:{job.state}:{job.trials}:{job.name}" for job, _ in found]
    return Compared(found, tuple(sides), len(shared) - len(kept), " ".join([*versions, *states]))


def answer(found: Compared) -> CompareOut:
    result = side_by_side(found.sides)
    return CompareOut(
        jobs=[_job(job, len(rows)) for job, rows in found.jobs],
        pairings=[PairingOut.model_validate(each) for each in result.pairings],
        unlike=[UnlikeOut.model_validate(each) for each in result.unlike],
        left_out=found.left_out,
        method=result.method,
    )


def _shared(found: Sequence[tuple[Job, Sequence[SearchTaskRow]]]) -> Mapping[Likeness, None]:
    """What several of the jobs search, in the order of the first of them."""
    held: dict[Likeness, set[str]] = {}
    for job, rows in found:
        for row in rows:
            held.setdefault(likeness(row.task), set()).add(job.id)
    return {key: None for key, ids in held.items() if len(ids) > 1}


def _job(job: Job, tasks: int) -> ComparedJob:
    parts = JobSummary.from_json(job.summary).tasks.values()
    return ComparedJob(
        **dict(JobOut.model_validate(job)),
        tasks=tasks,
        elapsed_s=sum(part.elapsed_s for part in parts) if parts else None,
        outcome=OutcomeOut.model_validate(outcome_of(job)),
    )
