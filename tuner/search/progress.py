"""How a search stands: the numbers that events, summaries and displays show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.program.jobspec import Budget
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject
from tuner.search.observations import Measured


def speedup_vs_default(summary: Mapping[str, Any]) -> float | None:
    """Over the default, weighted, at the tuned shapes: of the library once there is one, of the best kernel of each
    shape before."""
    default_s, library_s = summary.get("default_objective_s"), summary.get("library_objective_s")
    return default_s / library_s if default_s and library_s else summary.get("speedup_vs_default")


def speedup_vs_numpy(summary: Mapping[str, Any]) -> float | None:
    """The same over NumPy's BLAS."""
    best, best_s, library_s = (summary.get(n) for n in ("speedup_vs_numpy", "objective_s", "library_objective_s"))
    return best * best_s / library_s if best and best_s and library_s else best


@dataclass(frozen=True, slots=True)
class Standing:
    """The weighted time of all instances with the best kernels so far and with the default (the library of theory).

    Both are in seconds, over the instances for which the default has been measured; None before the first.
    ``speedup_vs_numpy`` is NumPy's weighted time over that of the best so far; None unless both are known at every
    instance.
    """

    objective_s: float | None
    default_objective_s: float | None
    speedup_vs_numpy: float | None = None

    @property
    def speedup(self) -> float | None:
        """Weighted time of the default over that of the best so far; never below 1, the default being one of them."""
        if not self.objective_s or not self.default_objective_s:
            return None
        return self.default_objective_s / self.objective_s


def standing(
    task: SearchTask, measured: Measured, defaults: Mapping[str, float], by_numpy: Mapping[str, float]
) -> Standing:
    """``defaults``, ``by_numpy``: latencies of the default and of NumPy by instance (as text), where measured. All of
    one speed of the device (see tuner.search.observations)."""
    known = [instance for instance in task.instances if str(instance) in defaults]
    best = [(instance.weight, measured.best_s(instance)) for instance in known]
    timed = [(weight, time) for weight, time in best if time is not None]
    numpy = _speedup(task, measured, by_numpy)
    if not timed or len(timed) != len(known):
        return Standing(None, None, numpy)
    return Standing(
        sum(weight * time for weight, time in timed),
        sum(instance.weight * defaults[str(instance)] for instance in known),
        numpy,
    )


def _speedup(task: SearchTask, measured: Measured, others: Mapping[str, float]) -> float | None:
    """The weighted time of another implementation over that of the best so far; None unless all is known."""
    ours = theirs = 0.0
    for instance in task.instances:
        best, other = measured.best_s(instance), others.get(str(instance))
        if best is None or other is None:
            return None
        ours += instance.weight * best
        theirs += instance.weight * other
    return theirs / ours if ours else None


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
        "speedup_vs_numpy": now.speedup_vs_numpy,
    }
