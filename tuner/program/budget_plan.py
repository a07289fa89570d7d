"""What a budget buys for the workloads of a job, before any of them is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.program.jobspec import Budget
from tuner.program.rates import TYPICAL
from tuner.program.task import SearchTask

MIN_TRIALS, MIN_SECONDS = 16, 4.0
"""The least that a search is given at once: a round of it takes about that."""
LIBRARY_S = 3.0
"""What a search leaves for its library at least, and what a library of theory takes."""
ENOUGH_TRIALS, ENOUGH_S = 64, 30.0
"""What is recommended for each workload: less finds little that theory does not (docs/performance.md, "Quality over
tuning time")."""
FLOPS_PER_CYCLE, BYTES_PER_CYCLE = 32, TYPICAL.l3_bytes
"""Of one core, where theory's estimate of a run is not at hand. Workloads are only compared with each other by it."""


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """Of ``searches`` that share ``budget`` so many are ``affordable``; the others end with libraries of theory.

    ``recommended``: of the same kinds of limits, enough for all of them.
    """

    searches: int
    budget: Budget

    @property
    def affordable(self) -> int:
        """All of them where no trials are wanted."""
        return self.searches if self.budget.trials == 0 else max(1, affordable(self.budget, self.searches))

    @property
    def recommended(self) -> Budget:
        trials = None if self.budget.trials is None else ENOUGH_TRIALS * self.searches
        return Budget(trials, None if self.budget.seconds is None else ENOUGH_S * self.searches)

    def to_json(self) -> dict[str, Any]:
        return {"searches": self.searches, "affordable": self.affordable, "recommended": self.recommended.to_json()}

    def __str__(self) -> str:
        plural = "s" * (self.searches != 1)
        told = f"{self.searches} workload{plural} in {_told(self.budget.to_json())}"
        if self.budget.trials == 0:
            return f"{told}: libraries of theory, nothing is searched"
        missed, recommended = self.searches - self.affordable, self.recommended.to_json()
        less = {name: value for name, value in self.budget.to_json().items() if value < recommended[name]}
        more = f"; {_told({name: recommended[name] for name in less})} recommended" if less else ""
        return f"{told}: {f'{missed} will not be searched' if missed else 'all will be searched'}{more}"


def _told(limits: Mapping[str, float]) -> str:
    """``180 s and 64 trials``"""
    parts = {"seconds": "{:g} s", "trials": "{} trials"}
    return " and ".join(text.format(limits[name]) for name, text in parts.items() if name in limits)


def affordable(budget: Budget, searches: int, round_s: float = MIN_SECONDS) -> int:
    """How many of ``searches`` a budget lets measure a round each, which takes ``round_s`` seconds, beside the
    libraries of all."""
    most = [searches]
    if budget.trials is not None:
        most.append(budget.trials // MIN_TRIALS)
    if budget.seconds is not None:
        most.append(int((budget.seconds - LIBRARY_S * searches) // round_s))
    return max(0, min(most))


def run_s(task: SearchTask) -> float:
    """About what a run of a task's workload takes, in seconds, the mean of its instances by their weights."""
    workload = task.workload
    dims = [(each.weight, workload.dims(each.shape)) for each in task.instances]
    cycles = sum(
        weight * (workload.flops(each) / FLOPS_PER_CYCLE + workload.bytes_moved(each) / BYTES_PER_CYCLE)
        for weight, each in dims
    )
    return cycles / (sum(weight for weight, _ in dims) * TYPICAL.clock_hz)
