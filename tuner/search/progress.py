"""The figures of a running search, computed from what it has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.program.jobspec import Budget
from tuner.program.task import SearchTask
from tuner.search.observations import Measured
from tuner.search.summary import SearchSummary, Stage


@dataclass(frozen=True, slots=True)
class Objectives:
    """The weighted time of all instances with the best kernels so far and with the default (theory's library).

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


def objectives(
    task: SearchTask, measured: Measured, defaults: Mapping[str, float], by_numpy: Mapping[str, float]
) -> Objectives:
    """``defaults``, ``by_numpy``: latencies of the default and of NumPy by instance (as text), where measured. All at
    the device's reference speed (see tuner.search.observations)."""
    known = [instance for instance in task.instances if str(instance) in defaults]
    best = [(instance.weight, measured.best_s(instance)) for instance in known]
    timed = [(weight, time) for weight, time in best if time is not None]
    numpy = _speedup(task, measured, by_numpy)
    if not timed or len(timed) != len(known):
        return Objectives(None, None, numpy)
    return Objectives(
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


def summarize(
    now: Objectives, measured: Measured, budget: Budget, elapsed_s: float, rounds: int, stage: Stage
) -> SearchSummary:
    return SearchSummary(
        phase=stage,
        round=rounds,
        trials=measured.trials,
        trials_budget=budget.trials,
        failed=measured.failures,
        commonest_error=measured.commonest_error,
        elapsed_s=round(elapsed_s, 3),
        seconds_budget=budget.seconds,
        objective_s=now.objective_s,
        default_objective_s=now.default_objective_s,
        speedup_vs_default=now.speedup,
        speedup_vs_numpy=now.speedup_vs_numpy,
    )
