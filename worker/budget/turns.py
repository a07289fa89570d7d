"""The turns that lanes take with the search tasks of a job, and where a task stands in the middle of one and after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.program.job.jobspec import Budget
from tuner.search.summary import SearchSummary
from worker.budget.split import TaskProgress


@dataclass(frozen=True, slots=True)
class Turn:
    """A lane with a task: its search spends the rest of ``allowance``, or its library is made."""

    position: int
    allowance: Budget
    since_s: float
    is_ending: bool

    def standing(self, before: TaskProgress, now_s: float) -> TaskProgress:
        """The progress of the task in the middle of the turn."""
        spent_s = before.spent_s + now_s - self.since_s
        ending = self.is_ending
        return replace(before, allowance=self.allowance, spent_s=spent_s, is_running=not ending, is_ending=ending)


def advanced(before: TaskProgress, allowance: Budget, now: SearchSummary) -> TaskProgress:
    """A standing after another piece of the budget."""
    trials = now.trials - before.trials
    saved_s = before.saved_s
    if trials > 0 and before.objective_s and now.objective_s:
        saved_s = max(0.0, before.objective_s - now.objective_s) / trials
    return replace(
        before,
        trials=now.trials,
        spent_s=now.elapsed_s,
        allowance=allowance,
        objective_s=now.objective_s,
        saved_s=saved_s,
        round_s=now.elapsed_s / now.round if now.round else 0.0,
    )


def ended(before: TaskProgress, now: SearchSummary) -> TaskProgress:
    return replace(before, trials=now.trials, spent_s=now.elapsed_s, is_done=True)
