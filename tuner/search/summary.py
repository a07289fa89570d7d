"""The figures of a search while it runs and when it has ended: what events, jobs and displays show.

As JSON they are public: the data of ``progress`` events, what callbacks of ``sw.tune`` are called with, and a job's
``summary``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from tuner.search.outcome import LIBRARY, SO_FAR, Outcome, total_of
from tuner.search.verdict import FinalComparison


class Stage(StrEnum):
    """What a search is doing; ``phase`` of its summary."""

    PLAN = "plan"
    KNOWN = "known"
    THEORY = "theory"
    SEARCH = "search"
    SELECT = "select"
    BUILD = "build"
    VERIFY = "verify"
    COMPARE = "compare"
    DONE = "done"


WALL_S = "wall_s"
"""The member of a job's summary with its wall time, once several of its searches ran at once: before, it is the sum of
theirs."""
PAST_SEARCH = (Stage.BUILD, Stage.VERIFY, Stage.COMPARE, Stage.DONE)
"""Stages after the last trial."""
_ACTIVITIES: Mapping[str, str] = {
    Stage.PLAN: "planning",
    Stage.KNOWN: "timing known kernels",
    Stage.THEORY: "timing the default",
    Stage.SEARCH: "searching",
    Stage.SELECT: "timing finalists",
    Stage.BUILD: "building",
    Stage.VERIFY: "verifying",
    Stage.COMPARE: "timing the library in turns with others",
}
"""How it is called before people."""


class EndedBy(StrEnum):
    """Why a search measured no more."""

    TRIALS = "trials"
    SECONDS = "seconds"
    NOTHING_HELPS = "no candidate expected to help"
    CANCELLED = "cancelled"


_ENDINGS: Mapping[str, str] = {
    EndedBy.SECONDS: "out of time",
    EndedBy.NOTHING_HELPS: "no candidate was expected to help",
    EndedBy.CANCELLED: "cancelled",
}
"""Texts on a search that did not use all its trials."""
TOLD_S = 0.1
"""Parts of a search's seconds that are shorter are not told."""


def out_of_seconds(spent_s: Mapping[str, float], seconds: float, after_s: float, reserve_s: float) -> str:
    """Where the seconds of a search went that measures no more: ``spent_s`` by stage, ``after_s`` before the search or
    for what comes after the library, ``reserve_s`` for the library."""
    parts = [f"{took_s:.1f} s {_ACTIVITIES.get(stage, stage)}" for stage, took_s in spent_s.items() if took_s >= TOLD_S]
    parts += [f"{after_s:.1f} s before the search, or for the library that is served"] if after_s >= TOLD_S else []
    kept = f"{reserve_s:.1f} s kept for selecting, building, verifying and comparing"
    return f"of {seconds:g} s: {', '.join([*parts, kept])}"


@dataclass(frozen=True, slots=True)
class Reused:
    """What a search started from: valid ``records`` of its workload by earlier ``jobs``, of so many ``kernels``; and
    records of related targets, which are priors of the cost model and nothing else."""

    records: int = 0
    kernels: int = 0
    jobs: int = 0
    related_targets: int = 0
    related_records: int = 0

    def __str__(self) -> str:
        parts = []
        if self.records:
            records, kernels = _plural(self.records, "record"), _plural(self.kernels, "kernel")
            parts.append(f"{records} of {kernels} by {_plural(self.jobs, 'job')} reused")
        if self.related_targets:
            records, targets = _plural(self.related_records, "record"), _plural(self.related_targets, "related target")
            parts.append(f"{records} of {targets} used as priors")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """The figures of one search task. None: not known, or no such budget.

    ``objective_s`` is the weighted time of all instances with the best kernels so far, ``default_objective_s`` with
    the default, both in seconds over the instances for which the default has been measured. ``speedup_vs_default`` and
    ``speedup_vs_numpy`` compare the best so far at the same shapes. ``kernels``, ``digest`` and
    ``library_objective_s`` are of the library; the last is None if a kernel of it was not timed at one of those shapes.
    ``reused`` is what the search started from, ``ended_by`` one of EndedBy once it measures no more. ``steps`` is how
    many parts its phase has, where that is known, ``step`` how many of them are done.
    ``interval_coverage``: the share of the times that were within the cost model's 80 % intervals of before.
    ``comparison``: of the library with the default and NumPy. ``reason``: why trials or seconds of the budget are left.
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
    reused: Reused | None = None
    ended_by: str | None = None
    interval_coverage: float | None = None
    step: int | None = None
    steps: int | None = None
    comparison: FinalComparison | None = None
    reason: str | None = None

    @property
    def activity(self) -> str:
        """``building 3 of 8``: what the search is doing."""
        what = _ACTIVITIES.get(self.phase, str(self.phase))
        return what if self.steps is None else f"{what} {self.step or 0} of {self.steps}"

    @property
    def ending(self) -> str:
        """``out of time (of 25 s: ...)``: why not all trials were used; empty where they were, and before the end. The
        reason is told once, when all is done."""
        text, reason = _ENDINGS.get(self.ended_by or "", ""), self.reason if self.phase == Stage.DONE else None
        return f"{text} ({reason})" if text and reason else text or reason or ""

    @property
    def trials_text(self) -> str:
        """``35 of 128 trials (2 failed), out of time``"""
        budget = f" of {self.trials_budget}" if self.trials_budget is not None else ""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.trials}{budget} trials{failed}" + (f", {self.ending}" if self.ending else "")

    @property
    def outcome(self) -> Outcome:
        """What the search came to: of the library once that was timed, of the best kernel of each shape before."""
        if self.comparison is not None:
            return Outcome.final(self.comparison)
        library_s = self.library_objective_s
        if not library_s:
            return Outcome.so_far(SO_FAR, self.objective_s, self.speedup_vs_default, self.speedup_vs_numpy)
        by_numpy_s = self.speedup_vs_numpy * self.objective_s if self.speedup_vs_numpy and self.objective_s else None
        over_default = self.default_objective_s / library_s if self.default_objective_s else None
        return Outcome.so_far(LIBRARY, library_s, over_default, by_numpy_s / library_s if by_numpy_s else None)

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

    def settled(self, comparison: FinalComparison | None) -> SearchSummary:
        """With the final comparison, where there is one: its ratios are the only ones from then on."""
        if comparison is None:
            return self
        final = Outcome.final(comparison)
        return replace(
            self, comparison=comparison, library_objective_s=comparison.objective_s,
            speedup_vs_default=final.speedup_vs_default, speedup_vs_numpy=final.speedup_vs_numpy,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """What is known of the library is left out before there is one, and so is what was reused where nothing was.
        ``outcome`` and ``activity`` follow from the rest."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | {"phase": str(self.phase)}
        if self.reused is not None:
            values["reused"] = asdict(self.reused)
        if self.comparison is not None:
            values["comparison"] = self.comparison.to_json()
        known = {name: value for name, value in values.items() if value is not None or name not in OPTIONAL_FIELDS}
        return known | {"outcome": self.outcome.to_json(), "activity": self.activity}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SearchSummary:
        """Read what ``to_json`` of this version or an older one wrote. Other members are left out."""
        known = {each.name: data[each.name] for each in fields(SearchSummary) if data.get(each.name) is not None}
        if "reused" in known:
            names = {each.name for each in fields(Reused)}
            known["reused"] = Reused(**{name: count for name, count in known["reused"].items() if name in names})
        if "comparison" in known:
            known["comparison"] = FinalComparison.from_json(known["comparison"])
        return SearchSummary(**known)


OPTIONAL_FIELDS = (
    "kernels", "digest", "library_objective_s", "reused", "ended_by", "interval_coverage", "step", "steps",
    "comparison", "reason",
)  # fmt: skip


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


@dataclass(frozen=True)
class JobSummary:
    """The summaries of a job's search tasks by position, of those that have begun."""

    tasks: Mapping[int, SearchSummary] = field(default_factory=dict)

    def replaced(self, position: int, summary: SearchSummary) -> JobSummary:
        """A copy with a new summary of one task."""
        return replace(self, tasks={**self.tasks, position: summary})

    def outcome(self, counts: Sequence[int]) -> Outcome:
        """What the searches that have begun came to together. ``counts``: of the workloads, by position."""
        return total_of([(counts[position], summary.outcome) for position, summary in self.tasks.items()])

    def to_json(self, task_count: int) -> dict[str, Any]:
        """The task's own summary for a job of one task, else ``{"tasks": {position: summary}}``."""
        if task_count == 1:
            return {name: value for summary in self.tasks.values() for name, value in summary.to_json().items()}
        return {"tasks": {str(position): summary.to_json() for position, summary in sorted(self.tasks.items())}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> JobSummary:
        """Read what ``to_json`` wrote; ``{}`` before the first search begins."""
        tasks = data.get("tasks", {"0": data} if data else {})
        result = {int(position): SearchSummary.from_json(summary) for position, summary in tasks.items()}
        return JobSummary(dict(sorted(result.items())))
