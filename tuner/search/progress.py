"""The figures of a running search, computed from what it has measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.library.dispatcher import Dispatcher
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.search.observations import Measured
from tuner.search.summary import SearchSummary, Stage


@dataclass(frozen=True, slots=True)
class Objectives:
    """The weighted time with the best kernels so far, with the default (theory's library) and with NumPy.

    All in seconds and over the same instances: those for which the default has been measured or, before the first, all
    of them. None where one of them is not known.
    """

    objective_s: float | None
    default_objective_s: float | None
    numpy_objective_s: float | None = None

    @property
    def speedup(self) -> float | None:
        """Weighted time of the default over that of the best so far; never below 1, the default being one of them."""
        return _over(self.default_objective_s, self.objective_s)

    @property
    def speedup_vs_numpy(self) -> float | None:
        """Weighted time of NumPy's BLAS over that of the best so far."""
        return _over(self.numpy_objective_s, self.objective_s)


def objectives(
    task: SearchTask, measured: Measured, defaults: Mapping[str, float], by_numpy: Mapping[str, float]
) -> Objectives:
    """``defaults``, ``by_numpy``: latencies of the default and of NumPy by instance (as text), where measured. All at
    the device's reference speed (see tuner.search.observations)."""
    compared = _compared(task, defaults)
    return Objectives(
        _weighted(compared, measured.best_s),
        _weighted(compared, lambda instance: defaults.get(str(instance))),
        _weighted(compared, lambda instance: by_numpy.get(str(instance))),
    )


def library_objective_s(
    task: SearchTask, measured: Measured, defaults: Mapping[str, float], dispatcher: Dispatcher
) -> float | None:
    """The weighted time with the kernels that a library runs, over the instances that ``objectives`` compares.

    None if one of the kernels was not measured at an instance that it serves.
    """

    def served_s(instance: WorkloadInstance) -> float | None:
        return measured.latency_s(dispatcher.kernel_for(instance.shape), instance.values)

    return _weighted(_compared(task, defaults), served_s)


def _compared(task: SearchTask, defaults: Mapping[str, float]) -> list[WorkloadInstance]:
    return [instance for instance in task.instances if str(instance) in defaults or not defaults]


def _weighted(
    instances: Sequence[WorkloadInstance], latency_s: Callable[[WorkloadInstance], float | None]
) -> float | None:
    times = [(instance.weight, latency_s(instance)) for instance in instances]
    known = [weight * time for weight, time in times if time is not None]
    return sum(known) if len(known) == len(times) else None


def _over(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


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
