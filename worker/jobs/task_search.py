"""What the searches of a job are made of: the tools they build and measure with, and what one search can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tuner.measure import Builder, Runner
from tuner.program.job.jobspec import Budget
from tuner.search.summary import EndedBy, SearchSummary
from tuner.search.tuning import FINISH_S, Tuned


class Tools(Protocol):
    """What a search builds and measures with. Requested again after each loss, so that it can be replaced. For use from
    several threads."""

    def builder(self) -> Builder:
        """Several searches of a job use it at once where its key has several devices. Raises BuilderLost."""

    def runner(self, key: str) -> Runner:
        """A new one, for the devices of a tracker key."""

    def parallel_builds(self, key: str, threads: int) -> int:
        """How many kernels may be built while others are measured on those devices, on ``threads`` threads each."""


class TaskSearch(Protocol):
    """What a job's budget is spent on: tuner.search.search.Search."""

    @property
    def summary(self) -> SearchSummary: ...

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy: ...

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned: ...

    def finish(self, job_id: str | None, within_s: float = FINISH_S) -> Tuned: ...

    def close(self) -> None: ...


OpenSearch = Callable[..., TaskSearch]
"""Called as Search is: with a task, SearchTools, a SearchStart, and keywords."""
