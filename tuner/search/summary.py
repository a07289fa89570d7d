"""The figures of a search while it runs and when it has ended: what events, jobs and displays show.

As JSON they are public: the data of ``progress`` events, what callbacks of ``sw.tune`` are called with, and a job's
``summary``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """What a search is doing; ``phase`` of its summary."""

    THEORY = "theory"
    SEARCH = "search"
    SELECT = "select"
    BUILD = "build"
    VERIFY = "verify"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """The figures of one search task. None: not known, or no such budget.

    ``objective_s`` is the weighted time of all instances with the best kernels so far, ``default_objective_s`` with
    the default, both in seconds over the instances for which the default has been measured. ``speedup_vs_default`` and
    ``speedup_vs_numpy`` compare the best so far at the tuned shapes. The last three are of the library.
    """

    phase: str = Stage.THEORY
    round: int = 0
    trials: int = 0
    trials_budget: int | None = None
    failed: int = 0
    commonest_error: str = ""
    elapsed_s: float = 0.0
    seconds_budget: float | None = None
    objective_s: float | None = None
    default_objective_s: float | None = None
    speedup_vs_default: float | None = None
    speedup_vs_numpy: float | None = None
    kernels: int | None = None
    digest: str | None = None
    library_objective_s: float | None = None

    @property
    def library_speedup_vs_default(self) -> float | None:
        """Of the library once there is one, of the best kernel of each shape before."""
        if self.default_objective_s and self.library_objective_s:
            return self.default_objective_s / self.library_objective_s
        return self.speedup_vs_default

    @property
    def library_speedup_vs_numpy(self) -> float | None:
        """The same over NumPy's BLAS."""
        if self.speedup_vs_numpy and self.objective_s and self.library_objective_s:
            return self.speedup_vs_numpy * self.objective_s / self.library_objective_s
        return self.speedup_vs_numpy

    @property
    def budget_share(self) -> float | None:
        """How much of the budget is spent, 0 to 1, by whichever of trials and seconds is closer to its end."""
        shares = []
        if self.trials_budget:
            shares.append(self.trials / self.trials_budget)
        if self.seconds_budget:
            shares.append(self.elapsed_s / self.seconds_budget)
        return min(1.0, max(shares)) if shares else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the budget is spent: by the clock, or by the rate of the trials, whichever is sooner."""
        ends = []
        if self.seconds_budget is not None:
            ends.append(self.seconds_budget - self.elapsed_s)
        if self.trials_budget and self.trials:
            ends.append(self.elapsed_s / self.trials * (self.trials_budget - self.trials))
        return max(0.0, min(ends)) if ends else None

    def to_json(self) -> dict[str, Any]:
        """What is known of the library is left out before there is one."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | {"phase": str(self.phase)}
        return {name: value for name, value in values.items() if value is not None or name not in LIBRARY_FIELDS}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SearchSummary:
        """Read what ``to_json`` of this version or an older one wrote. Other members are left out."""
        known = {each.name: data[each.name] for each in fields(SearchSummary) if data.get(each.name) is not None}
        return SearchSummary(**known)


LIBRARY_FIELDS = ("kernels", "digest", "library_objective_s")


@dataclass(frozen=True)
class JobSummary:
    """The summaries of a job's search tasks by position, of those that have begun."""

    tasks: Mapping[int, SearchSummary] = field(default_factory=dict)

    def replaced(self, position: int, summary: SearchSummary) -> JobSummary:
        """The same with a new summary of one task."""
        return replace(self, tasks={**self.tasks, position: summary})

    def to_json(self, task_count: int) -> dict[str, Any]:
        """The task's own summary for a job of one task, else ``{"tasks": {position: summary}}``."""
        if task_count == 1:
            return {name: value for summary in self.tasks.values() for name, value in summary.to_json().items()}
        return {"tasks": {str(position): summary.to_json() for position, summary in sorted(self.tasks.items())}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> JobSummary:
        """Read what ``to_json`` wrote; ``{}`` before the first search begins."""
        tasks = data.get("tasks", {"0": data} if data else {})
        found = {int(position): SearchSummary.from_json(summary) for position, summary in tasks.items()}
        return JobSummary(dict(sorted(found.items())))
