"""Searches in the place of real ones, each a curve over its trials, for tests of whole jobs on a real database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.contract.samples import JOB, results
from tests.worker.jobs.scripted import Tools, tuned
from tuner.measure import DeviceLost
from tuner.program.job.jobspec import Budget, parse_job
from tuner.search.summary import EndedBy, SearchSummary, Stage
from tuner.search.tuning import Cancelled, Finishing, SearchStart, SearchTools, Tuned
from tuner.storage import JobState, Lease
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner


@dataclass
class Bed:
    """Opens a curve for each task: its objective in seconds after so many trials."""

    curves: list[Callable[[int], float]]
    most: dict[int, int] = field(default_factory=dict)
    """By position, the trials after which nothing helps."""
    before: Callable[[CurveSearch], None] = lambda search: None
    opened: list[int] = field(default_factory=list)
    explored: list[tuple[int, int]] = field(default_factory=list)
    """Positions, and the trials that each had then."""
    live: set[int] = field(default_factory=set)
    finished: list[int] = field(default_factory=list)
    loses: tuple[int, ...] = ()
    """Positions whose libraries a lost device costs."""
    running: set[int] = field(default_factory=set)
    at_once: int = 0
    """The most that were explored at the same time."""

    def open(self, task: Any, tools: SearchTools, start: SearchStart, **_: Any) -> CurveSearch:
        recorder: Any = tools.recorder
        position = recorder._row.position
        self.opened.append(position)
        self.live.add(position)
        return CurveSearch(self, position, tools, start)


class CurveSearch:
    """Spends what it is allowed, one record for each trial."""

    def __init__(self, bed: Bed, position: int, tools: SearchTools, start: SearchStart) -> None:
        self.bed, self.position, self.recorder = bed, position, tools.recorder
        self.should_stop, self.should_finish = tools.should_stop, tools.should_finish
        self.trials = len(start.past)

    @property
    def summary(self) -> SearchSummary:
        objective_s = self.bed.curves[self.position](self.trials) if self.trials else None
        return SearchSummary(Stage.SEARCH, trials=self.trials, elapsed_s=float(self.trials), objective_s=objective_s)

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        self.bed.running.add(self.position)
        self.bed.at_once = max(self.bed.at_once, len(self.bed.running))
        try:
            return self._explore(budget)
        finally:
            self.bed.running.discard(self.position)

    def _explore(self, budget: Budget) -> EndedBy:
        most = self.bed.most.get(self.position, 10**6)
        more = min(budget.trials or 0, most) - self.trials
        if more > 0:
            made = results(more, start=1000 * self.position + self.trials)
            self.trials += more
            self.recorder.record(made, [], float(self.trials), self.summary)
        self.bed.explored.append((self.position, self.trials))
        self.bed.before(self)
        if self.should_finish():
            raise Finishing
        return EndedBy.NOTHING_HELPS if self.trials >= most else EndedBy.TRIALS

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        return self._tuned("done")

    def finish(self, job_id: str | None, within_s: float = 0.0) -> Tuned:
        self.bed.finished.append(self.position)
        if self.position in self.bed.loses:
            raise DeviceLost("gone")
        if not self.trials:
            raise Cancelled
        return self._tuned(EndedBy.CANCELLED)

    def close(self) -> None:
        self.bed.live.discard(self.position)

    def _tuned(self, ended_by: str) -> Tuned:
        result = tuned()
        digest = {"digest": f"{self.position}" * 64}
        return replace(result, manifest=digest, summary=replace(self.summary, ended_by=ended_by))


def leased(
    storage: Storage, counts: tuple[int, ...] = (1, 12, 1), trials: int = 192, budget: dict[str, Any] | None = None
) -> Lease:
    """A job of a workload for each of ``counts``, each smaller than the one before."""
    workloads = [
        {"op": "matmul", "args": {"m": "T", "n": 8, "k": 8 * (len(counts) - position)}, "count": count}
        for position, count in enumerate(counts)
    ]
    plain = {name: value for name, value in JOB.items() if name != "workload"}
    storage.create_job(parse_job({**plain, "workloads": workloads, "budget": budget or {"trials": trials}}))
    lease = storage.lease_job("w1", 30.0)
    assert lease is not None
    return lease


def run(storage: Storage, bed: Bed, lease: Lease, devices: int = 1) -> JobState | None:
    tools = Tools(devices)
    state = JobRunner(storage, tools, open_search=bed.open, heartbeat_s=0.05).run(lease)
    assert bed.live == set(), "a search was not closed"
    assert tools.made == tools.closed, "a runner was not closed"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]
    return state


def trials_of(storage: Storage, lease: Lease) -> list[int]:
    return [len(storage.records_of_task(row.id)) for row in storage.search_tasks(lease.job.id)]


def flat(_trials: int) -> float:
    return 1e-3


def falling(trials: int) -> float:
    return 1e-3 * (1 - trials / 250)
