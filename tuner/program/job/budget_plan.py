"""What a budget buys for the workloads of a job, before any of them is timed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.reference import WHOLE_WORK
from tuner.program.target.rates import TYPICAL

MIN_TRIALS, MIN_SECONDS = 16, 4.0
"""The least that a search is given at once: a round of it takes about that, of a workload of no great size."""
LIBRARY_S = 3.0
"""The least that a search of such a workload leaves for its library."""
ROUND_SHAPES, LIBRARY_SHAPES = 4, 4
"""The number of shapes, about, that kernels are verified at in a first round, and a library before it is handed out."""
ENOUGH_TRIALS, ENOUGH_S = 64, 30.0
"""The budget recommended for each workload: less finds little that theory does not (docs/performance.md, "Quality over
tuning time")."""
ENOUGH_ROUNDS = 3
VERIFY_RATE = 6e9
"""Operations (see ``verify_work``) a second of a verification, before any was timed."""
ELEMENT_WORK, FEW_ELEMENTS = 200, 2**20
"""What an element of a tensor takes: to be drawn, packed, surrounded, compared, and its magnitude summed; and how many
take no longer than what each shape adds."""
KERNEL_SPEED = 16
"""How many times as fast as the reference a kernel is."""
FLOPS_PER_CYCLE, BYTES_PER_CYCLE = 32, TYPICAL.l3_bytes
"""Rates of one core, where theory's estimate of a run is not at hand: they only compare workloads with each other."""
ROUNDING_S = 1e-6
"""The remainder of a budget that was given out piece by piece is off by less than this."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a search takes: its first round, and its library."""

    round_s: float = MIN_SECONDS
    library_s: float = LIBRARY_S

    @staticmethod
    def of(task: SearchTask) -> Cost:
        """The cost of a round by the work at the middle one of the instances, of a library by that at the least."""
        workload = task.workload
        works = sorted(verify_work(workload, workload.dims(each.shape)) for each in task.instances)
        least, middle = works[0] / VERIFY_RATE, works[len(works) // 2] / VERIFY_RATE
        return Cost(MIN_SECONDS + ROUND_SHAPES * middle, LIBRARY_S + LIBRARY_SHAPES * least)

    @property
    def enough_s(self) -> float:
        """What is recommended for such a search."""
        more_s = ENOUGH_ROUNDS * (self.round_s - MIN_SECONDS) + self.library_s - LIBRARY_S
        return ENOUGH_S + more_s


USUAL = Cost()


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What ``budget`` buys for searches of these ``costs``, those of which most is expected first.

    It is enough for the ``affordable`` ones; the others end with libraries of theory, or those that are served.
    ``recommended``: a budget of the same kinds of limits, enough for all of them.
    """

    costs: tuple[Cost, ...]
    budget: Budget

    @staticmethod
    def of(tasks: Iterable[tuple[SearchTask, int]], budget: Budget) -> BudgetPlan:
        """``tasks``: each with the count of its workload."""
        known = [(count * run_s(task), Cost.of(task)) for task, count in tasks]
        known.sort(key=lambda each: -each[0] / each[1].round_s)
        return BudgetPlan(tuple(cost for _, cost in known), budget)

    @property
    def searches(self) -> int:
        return len(self.costs)

    @property
    def affordable(self) -> int:
        """All of them where no trials are wanted."""
        if self.budget.trials == 0:
            return self.searches
        return max(min(1, self.searches), len(affordable(self.budget, self.costs)))

    @property
    def recommended(self) -> Budget:
        trials = None if self.budget.trials is None else ENOUGH_TRIALS * self.searches
        enough_s = 10.0 * round(sum(cost.enough_s for cost in self.costs) / 10.0)
        return Budget(trials, None if self.budget.seconds is None else enough_s)

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


def affordable(budget: Budget, costs: Sequence[Cost]) -> list[int]:
    """Which searches a budget lets measure a round each, taken in this order, beside the libraries of all."""
    left_s = math.inf if budget.seconds is None else budget.seconds - sum(cost.library_s for cost in costs)
    left = math.inf if budget.trials is None else budget.trials
    chosen = []
    for position, cost in enumerate(costs):
        if cost.round_s <= left_s + ROUNDING_S and left >= MIN_TRIALS:
            left_s, left = left_s - cost.round_s, left - MIN_TRIALS
            chosen.append(position)
    return chosen


def run_s(task: SearchTask) -> float:
    """About what a run of a task's workload takes, in seconds, the mean of its instances by their weights."""
    workload = task.workload
    dims = [(each.weight, workload.dims(each.shape)) for each in task.instances]
    cycles = sum(
        weight * (workload.flops(each) / FLOPS_PER_CYCLE + workload.bytes_moved(each) / BYTES_PER_CYCLE)
        for weight, each in dims
    )
    return cycles / (sum(weight for weight, _ in dims) * TYPICAL.clock_hz)


def verify_work(workload: Workload, dims: Mapping[str, int]) -> float:
    """Operations of a verification: of the reference, and of what is done to each element of the operands. That is most
    of it where weights are large, however few rows there are."""
    elements = sum(math.prod(tensor.shape(dims)) for tensor in workload.operands)
    return reference_work(workload, dims) + ELEMENT_WORK * max(0, elements - FEW_ELEMENTS)


def reference_work(workload: Workload, dims: Mapping[str, int]) -> float:
    """Operations of the reference, and beyond WHOLE_WORK those of a kernel beside it."""
    work = workload.work(dims)
    return work if work <= WHOLE_WORK else min(work, WHOLE_WORK + workload.flops(dims) / KERNEL_SPEED)
