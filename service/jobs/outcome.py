"""What the searches of a job came to together, for the API and the pages alike."""

from __future__ import annotations

from tuner.program.job.jobspec import counts_of
from tuner.search.outcome import Outcome
from tuner.search.summary import JobSummary
from tuner.storage import Job


def outcome_of(job: Job, summary: JobSummary | None = None) -> Outcome:
    """The total of the searches that have begun, each counted as often as its workload occurs."""
    known = summary or JobSummary.from_json(job.summary)
    counts = counts_of(job.spec)
    # A summary of more searches than the job file has is no reason to show nothing.
    return known.outcome([*counts, *([1] * (1 + max(known.tasks, default=0) - len(counts)))])
