"""How a search stands: the numbers that events, summaries and displays show."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.jobspec import Budget
from tuner.latency import Measured
from tuner.task import SearchTask
from tuner.workload import JsonObject


@dataclass(frozen=True, slots=True)
class Standing:
    """The weighted time of all instances with the best kernels so far and with the default (the library of theory).

    Both are in seconds, over the instances for which the default has been measured; None before the first.
    """

    objective_s: float | None
    default_objective_s: float | None

    @property
    def speedup(self) -> float | None:
        """Weighted time of the default over that of the best so far; never below 1, the default being one of them."""
        if not self.objective_s or not self.default_objective_s:
            return None
        return self.default_objective_s / self.objective_s


def standing(task: SearchTask, measured: Measured, defaults: dict[str, float]) -> Standing:
    """``defaults``: the default's latency by instance (as text), where it was measured."""
    known = [instance for instance in task.instances if str(instance) in defaults]
    best = [(instance.weight, measured.best_s(instance)) for instance in known]
    timed = [(weight, time) for weight, time in best if time is not None]
    if not timed or len(timed) != len(known):
        return Standing(None, None)
    return Standing(
        sum(weight * time for weight, time in timed),
        sum(instance.weight * defaults[str(instance)] for instance in known),
    )


def summary(now: Standing, measured: Measured, budget: Budget, elapsed_s: float, rounds: int, phase: str) -> JsonObject:
    """The data of a ``progress`` event."""
    return {
        "phase": phase,
        "round": rounds,
        "trials": measured.trials,
        "trials_budget": budget.trials,
        "failed": measured.failures,
        "commonest_error": measured.commonest_error,
        "elapsed_s": round(elapsed_s, 3),
        "seconds_budget": budget.seconds,
        "objective_s": now.objective_s,
        "default_objective_s": now.default_objective_s,
        "speedup_vs_default": now.speedup,
    }
