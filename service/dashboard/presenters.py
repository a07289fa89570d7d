"""Jobs as the pages show them, from rows of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.jobs.outcome import outcome_of
from service.times import between_s
from tuner.program.job.jobspec import counts_of
from tuner.search.summary import JobSummary, SearchSummary
from tuner.search.verdict import DEFAULT, NUMPY, Ratio
from tuner.storage import ApiKey, Job


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as a line of a table."""

    id: str
    name: str
    state: str
    ended: bool
    owner: str
    device: str
    trials: int
    progress: float
    """The spent share (0 to 1) of the budget that is closest to its end; over all tasks in the mean."""
    speedup: Ratio | None
    """Speed-up over the default; of several tasks that of their total, each counted as often as its workload occurs."""
    vs_numpy: Ratio | None
    created_at: str
    age_s: float | None
    tasks: int = 1
    """Search tasks: a job of several has a page of its layers."""
    tags: tuple[str, ...] = ()


def lines_of(jobs: Iterable[Job], keys: Sequence[ApiKey]) -> list[JobLine]:
    owners = {key.id: key.name for key in keys}
    return [line_of(job, owners) for job in jobs]


def line_of(job: Job, owners: Mapping[str, str]) -> JobLine:
    summary = JobSummary.from_json(job.summary)
    outcome, parts = outcome_of(job, summary), summary.tasks.values()
    return JobLine(
        id=job.id,
        name=job.name or job.id,
        state=job.state.value,
        ended=job.state.ended,
        owner=owners.get(job.owner, job.owner),
        device=job.device,
        trials=job.trials,
        progress=1.0 if job.state.value == "COMPLETED" else sum(map(budget_share, parts)) / tasks_of(job),
        speedup=outcome.ratio(DEFAULT),
        vs_numpy=outcome.ratio(NUMPY),
        created_at=job.created_at,
        age_s=between_s(job.created_at, None),
        tasks=tasks_of(job),
        tags=job.tags,
    )


def tasks_of(job: Job) -> int:
    """How many search tasks a job has: one for each workload and target."""
    return len(counts_of(job.spec))


def summary_of(job: Job, position: int) -> SearchSummary | None:
    """The summary of the search task at ``position``; None before it begins."""
    return JobSummary.from_json(job.summary).tasks.get(position)


def budget_share(summary: SearchSummary | None) -> float:
    """How much of the budget is spent, 0 to 1."""
    return (summary.budget_share or 0.0) if summary else 0.0


def headline(summary: SearchSummary | None) -> list[tuple[str, str]]:
    """What the search came to, each figure with what it is: ``("1.62x", "over the default (1.58x to 1.66x)")``."""
    if summary is None:
        return []
    result = [(ratio.figure, ratio.rival) for ratio in summary.outcome.ratios]
    if result:
        result[-1] = (result[-1][0], f"{result[-1][1]} ({summary.outcome.label})")
    if summary.kernels is not None:
        result.append((str(summary.kernels), "kernel" if summary.kernels == 1 else "kernels"))
    return [*result, (f"{summary.elapsed_s:.0f} s", "of search")]
