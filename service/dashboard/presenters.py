"""From rows of the database to what the pages say of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.times import between_s
from tuner.program.workload import JsonObject
from tuner.search.progress import speedup_vs_default, speedup_vs_numpy
from tuner.storage import ApiKey, Job, SearchTaskRow


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
    """Of the budget that is closest to its end, 0 to 1; over all tasks in the mean."""
    speedup: float | None
    """Over the default; of several tasks the geometric mean."""
    vs_numpy: float | None
    created_at: str
    age_s: float | None


def lines_of(jobs: Iterable[Job], keys: Sequence[ApiKey]) -> list[JobLine]:
    owners = {key.id: key.name for key in keys}
    return [line_of(job, owners) for job in jobs]


def line_of(job: Job, owners: Mapping[str, str]) -> JobLine:
    parts = summaries(job.summary)
    return JobLine(
        id=job.id,
        name=job.name or job.id,
        state=job.state.value,
        ended=job.state.ended,
        owner=owners.get(job.owner, job.owner),
        device=job.device,
        trials=job.trials,
        progress=1.0 if job.state.value == "COMPLETED" else sum(map(progress, parts)) / tasks_of(job),
        speedup=_mean(map(speedup_vs_default, parts)),
        vs_numpy=_mean(map(speedup_vs_numpy, parts)),
        created_at=job.created_at,
        age_s=between_s(job.created_at, None),
    )


def summaries(summary: Mapping[str, Any]) -> list[JsonObject]:
    """The summaries of a job's search tasks, in order; one job of one task has just its own."""
    if "tasks" in summary:
        return [summary["tasks"][position] for position in sorted(summary["tasks"], key=int)]
    return [dict(summary)] if summary else []


def tasks_of(job: Job) -> int:
    """How many search tasks a job has: one for each workload and target."""
    return max(1, len(job.spec.get("workloads", ())) or 1) * max(1, len(job.spec.get("targets", ())) or 1)


def summary_of(job: Job, row: SearchTaskRow) -> JsonObject:
    """What the search of one task has found so far; empty before it begins."""
    if "tasks" in job.summary:
        return dict(job.summary["tasks"].get(str(row.position), {}))
    return dict(job.summary)


def progress(summary: Mapping[str, Any]) -> float:
    """How much of the budget is spent, by whichever of trials and seconds is closer to its end."""
    shares = [
        summary[done] / summary[budget]
        for done, budget in (("trials", "trials_budget"), ("elapsed_s", "seconds_budget"))
        if summary.get(budget) and summary.get(done) is not None
    ]
    return min(1.0, max(shares, default=0.0))


def headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the search came to, each figure with what it is: ``("1.62×", "the default")``."""
    gains = ((speedup_vs_default(summary), "the default (theory alone)"), (speedup_vs_numpy(summary), "NumPy's BLAS"))
    found = [(f"{gain:.2f}×", what) for gain, what in gains if gain is not None]
    if found:
        found[-1] = (found[-1][0], f"{found[-1][1]} at the tuned shapes")
    if summary.get("kernels") is not None:
        found.append((str(summary["kernels"]), "kernel" if summary["kernels"] == 1 else "kernels"))
    if summary.get("elapsed_s") is not None:
        found.append((f"{summary['elapsed_s']:.0f} s", "of search"))
    return found


def _mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known."""
    found = [ratio for ratio in ratios if ratio]
    return math.prod(found) ** (1 / len(found)) if found else None
