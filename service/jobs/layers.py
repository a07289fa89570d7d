"""The layers of a job: its workloads as a model has them, each with its share of the time of all."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import numpy as np

from service.jobs.outcome import outcome_of
from tuner.errors import ShapewrightError
from tuner.program.job.jobspec import counts_of, parse_budget
from tuner.program.job.layers import layers_of
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Workload
from tuner.schedule import default_kernel, estimate_s
from tuner.search.outcome import Outcome
from tuner.search.summary import WALL_S, JobSummary, SearchSummary, Stage
from tuner.storage import Job, JobState, SearchTaskRow
from tuner.storage.sql import ClientStorage


class LayerState(StrEnum):
    """A job's states, and that of a layer which there was no budget to search for: its library is theory's, or the one
    that was served before."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    UNSEARCHED = "UNSEARCHED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def told(self) -> str:
        """The state as people read it."""
        return "not searched" if self is LayerState.UNSEARCHED else self.value.lower()


@dataclass(frozen=True, slots=True)
class Layer:
    """A search task of a job as a part of a model. ``summary``: None before its search begins.

    ``time_s``: its count times its weighted time, with the best kernels so far, None before it was measured;
    ``expected_s``: the same by theory alone, where that is all there is. ``share``: of the sum of these over all layers
    on its target. ``shapes``: of its operands, over the shape variables.
    """

    row: SearchTaskRow
    names: tuple[str, ...]
    state: LayerState
    summary: SearchSummary | None
    time_s: float | None
    expected_s: float | None
    share: float | None
    shapes: Mapping[str, tuple[str, ...]]

    @property
    def basis(self) -> str | None:
        """What its share is made of: ``measured``, ``expected`` by theory, or nothing."""
        return "measured" if self.time_s is not None else "expected" if self.expected_s is not None else None

    @property
    def outcome(self) -> Outcome:
        return self.summary.outcome if self.summary else Outcome()


@dataclass(frozen=True, slots=True)
class Layers:
    """Some layers of a job, and what holds for all of them.

    ``remaining_s``: seconds until its budget is spent, by the clock or by the rate of its trials; None unless it runs.
    ``measured_share``: the part of the time of all layers that was measured; None where nothing is known of any.
    """

    items: tuple[Layer, ...]
    outcome: Outcome
    measured_share: float | None
    budget_share: float | None
    remaining_s: float | None

    @property
    def expected_end(self) -> str | None:
        """When the budget is spent at this rate, in UTC. A search may end before."""
        if self.remaining_s is None:
            return None
        return (datetime.now(UTC) + timedelta(seconds=self.remaining_s)).isoformat(timespec="seconds")


class Expectations:
    """What theory alone expects of the layers of jobs, computed once for each job. For use from any thread."""

    def __init__(self, most: int = 64) -> None:
        self._most, self._known = most, OrderedDict[str, dict[int, float]]()
        self._lock = threading.Lock()

    def of(self, jobs: ClientStorage, job_id: str) -> Mapping[int, float]:
        """Seconds that a run of the model spends in each layer with its default kernel, by position."""
        with self._lock:
            if (known := self._known.get(job_id)) is not None:
                return known
        found = ((row.position, row.count, expected_s(row.task)) for row in jobs.search_tasks(job_id))
        result = {position: count * each_s for position, count, each_s in found if each_s is not None}
        with self._lock:
            self._known[job_id] = result
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return result


def expected_s(task: SearchTask) -> float | None:
    """The weighted time of all instances with the default kernel, by theory; None where no rule can tell."""
    try:
        kernel = default_kernel(task)
        sizes = [task.workload.axis_sizes(task.workload.dims(instance.shape)) for instance in task.instances]
        extents = {axis: np.array([row[axis] for row in sizes], np.int64) for axis in task.workload.program.axes}
        (times,) = estimate_s(task, [kernel], extents)
    except ShapewrightError:
        return None
    return float(times @ np.array([instance.weight for instance in task.instances]))


EXPECTATIONS = Expectations()
"""Of this process: a job's search tasks never change."""


def layers_in(job: Job, rows: Sequence[SearchTaskRow], expected: Mapping[int, float]) -> Layers:
    """The layers of ``rows``, any search tasks of the job; shares are of all of its tasks. ``expected``: seconds by
    position, where nothing was measured."""
    summary, names = JobSummary.from_json(job.summary), layers_of(job.spec)
    times = _times(summary, job)
    known = {**expected, **times}
    targets = len(job.spec.get("targets") or [None])
    whole_s = [sum(time_s for position, time_s in known.items() if position % targets == at) for at in range(targets)]
    items = tuple(
        Layer(
            row,
            names[row.position] if row.position < len(names) else (),
            _state(job, row, summary.tasks.get(row.position)),
            summary.tasks.get(row.position),
            times.get(row.position),
            None if row.position in times else expected.get(row.position),
            known[row.position] / whole_s[row.position % targets] if row.position in known else None,
            shapes_of(row.task.workload),
        )
        for row in rows
    )
    spent = _spent(job, summary)
    runs = job.state is JobState.RUNNING and bool(summary.tasks)
    measured = sum(times.values()) / sum(whole_s) if sum(whole_s) else None
    return Layers(items, outcome_of(job, summary), measured, spent.budget_share, spent.remaining_s if runs else None)


def by_share(layers: Sequence[Layer]) -> list[Layer]:
    """The largest part of the time first, those without a time last."""
    return sorted(layers, key=lambda layer: -(layer.share or 0.0))


def shapes_of(workload: Workload) -> dict[str, tuple[str, ...]]:
    """The dims of every operand, over the shape variables."""
    symbols: dict[str, DimExpr] = dict(workload.symbol_exprs)
    return {operand.name: tuple(str(dim.substituted(symbols)) for dim in operand.dims) for operand in workload.operands}


def _times(summary: JobSummary, job: Job) -> dict[int, float]:
    """Seconds that a run of the model spends in each layer that has been timed, by position. While the default is
    timed, what is known is mostly theory's."""
    counts = counts_of(job.spec)
    return {
        position: counts[position] * each.outcome.objective_s
        for position, each in summary.tasks.items()
        if each.outcome.objective_s and each.phase != Stage.THEORY and position < len(counts)
    }


def _state(job: Job, row: SearchTaskRow, summary: SearchSummary | None) -> LayerState:
    if row.done or job.state is JobState.COMPLETED:
        is_searched = (summary and summary.trials > 0) or parse_budget(job.spec.get("budget")).trials == 0
        return LayerState.COMPLETED if is_searched else LayerState.UNSEARCHED
    if summary is None and not job.state.ended:
        return LayerState.WAITING
    return LayerState(job.state.value)


def _spent(job: Job, summary: JobSummary) -> SearchSummary:
    """The part of the budget that the searches have spent together."""
    budget, elapsed_s = parse_budget(job.spec.get("budget")), job.summary.get(WALL_S)
    return SearchSummary(
        trials=sum(each.trials for each in summary.tasks.values()),
        trials_budget=budget.trials,
        elapsed_s=sum(each.elapsed_s for each in summary.tasks.values()) if elapsed_s is None else float(elapsed_s),
        seconds_budget=budget.seconds,
    )
