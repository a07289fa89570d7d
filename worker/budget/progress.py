"""Where a search task of a job stands: before a turn of a lane, in the middle of it and after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.program.job.budget_plan import USUAL, Cost
from tuner.program.job.jobspec import Budget
from tuner.search.summary import SearchSummary

RECENT = 0.5
"""The weight of what a task's last trials saved, against what as many again are expected to save."""
POTENTIAL = 0.1
"""The part of a task's time that as many trials again are expected to save, whatever the last ones did: Ansor takes all
of it, which leaves no weight to what was seen."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Where a search task stands. ``count``: how often its workload occurs in the job; ``run_s``: about what it takes
    then, in seconds, as far as that can be said before it is timed; ``cost``: what its search takes at least, as far as
    that can be said; ``known``: trials of earlier jobs that it starts from.

    ``allowance``: what it may use of the job's budget, with what it has used; None: nothing was given to it yet.
    ``objective_s``: the weighted time with its best kernels; None before any was timed. ``saved_s``: by how much its
    last piece of the budget lessened that, for each trial. ``round_s``: what a round of its search takes. ``is_done``:
    it has its library. Where several searches run at once: ``is_running`` while its search spends its ``allowance``,
    ``is_ending`` while its library is made; ``spent_s`` is as of now then.
    """

    count: int
    trials: int = 0
    spent_s: float = 0.0
    allowance: Budget | None = None
    objective_s: float | None = None
    saved_s: float = 0.0
    round_s: float = 0.0
    is_done: bool = False
    is_running: bool = False
    is_ending: bool = False
    run_s: float = 0.0
    cost: Cost = USUAL
    known: int = 0

    @property
    def reserved(self) -> Budget:
        """The part of the job's budget that nobody else may use."""
        if self.is_done or self.allowance is None:
            return Budget(self.trials, self.spent_s)
        return Budget(max(self.trials, self.allowance.trials or 0), max(self.spent_s, self.allowance.seconds or 0.0))

    @property
    def unspent_s(self) -> float:
        """The time that it may still take of its lane: at least its library is to be made in that."""
        return (self.reserved.seconds or 0.0) - self.spent_s

    def gain(self, *, per_second: bool) -> float:
        """What one more trial, or one more second, is expected to save in a run of the job's workloads, in seconds."""
        if not self.objective_s:
            return 0.0
        used = self.spent_s if per_second else self.trials
        trials_for_one = max(1, self.trials) / used if used else 1.0
        return trials_for_one * (RECENT * self.count * self.saved_s + (1 - RECENT) * self.potential_s)

    @property
    def potential_s(self) -> float:
        """What one more trial is expected to save in a run of the job's workloads, whatever the last ones saved."""
        return self.count * POTENTIAL * (self.objective_s or self.run_s) / max(1, self.trials + self.known)


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
