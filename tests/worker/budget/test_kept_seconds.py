"""A job of several workloads keeps its seconds: each search has its share, also beside one that takes too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.worker.budget.curves import leased
from tests.worker.jobs.scripted import Tools, tuned
from tuner.measure import DeviceLost
from tuner.program.job.jobspec import Budget
from tuner.search.summary import EndedBy, SearchSummary, Stage
from tuner.search.tuning import Tuned
from tuner.storage.sql import Storage
from worker.budget.progress import TaskProgress
from worker.budget.split import Lanes, ending_allowance
from worker.jobs.heartbeat import Heartbeat
from worker.jobs.leased_job import LeasedJob
from worker.jobs.retry import Retry
from worker.jobs.searches import JobSearches


@dataclass
class Timed:
    """Opens searches that spend what they are allowed of a clock, and ``late_s`` by position beyond it, once."""

    open_s: float = 0.0
    library_s: float = 2.0
    late_s: Mapping[int, float] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    searches: dict[int, TimedSearch] = field(default_factory=dict)

    def open(self, task: Any, tools: Any, start: Any, **_: Any) -> TimedSearch:
        self.clock.now_s += self.open_s
        position = tools.recorder._row.position
        self.searches[position] = TimedSearch(self, position, self.late_s.get(position, 0.0))
        return self.searches[position]


@dataclass
class TimedSearch:
    bed: Timed
    position: int
    late_s: float
    explored_s: float = 0.0
    given_s: float = 0.0
    """What it had for its library."""
    trials: int = 0

    @property
    def summary(self) -> SearchSummary:
        return SearchSummary(
            Stage.SEARCH, trials=self.trials, elapsed_s=self.explored_s, objective_s=1e-3 if self.trials else None
        )

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        left_s = (budget.seconds or 0.0) - after_s - self.bed.library_s - self.explored_s
        if left_s > 0:
            self._spend(left_s + self.late_s)
            self.late_s, self.trials = 0.0, self.trials + 4
        return EndedBy.SECONDS

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        assert budget is not None
        self.given_s = (budget.seconds or 0.0) - after_s - self.explored_s
        self._spend(min(self.bed.library_s, max(0.1, self.given_s)))
        result = tuned()
        manifest = {"digest": f"{self.position}" * 64}
        return replace(result, manifest=manifest, summary=replace(self.summary, phase=Stage.DONE))

    def finish(self, job_id: str | None, within_s: float = 0.0) -> Tuned:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to end."""

    def _spend(self, seconds: float) -> None:
        self.bed.clock.now_s += seconds
        self.explored_s += seconds


def run(storage: Storage, bed: Timed, seconds: float, tasks: int = 4) -> float:
    """What a job took."""
    lease = leased(storage, (1,) * tasks, budget={"seconds": seconds})
    began_s = bed.clock()
    with Heartbeat(storage, lease, 30.0, 5.0) as heartbeat:
        job = LeasedJob(lease, storage, heartbeat, Retry())
        JobSearches(job, Tools(), bed.open, lambda: False, clock=bed.clock).run()
    assert all(row.done for row in storage.search_tasks(lease.job.id))
    return bed.clock() - began_s


@pytest.mark.soak
@pytest.mark.parametrize("open_s", [3.0, 0.0])
def test_four_searches_share_the_seconds_of_a_job(storage: Storage, open_s: float) -> None:
    bed = Timed(open_s)
    assert run(storage, bed, 100.0) <= 103.0
    for search in bed.searches.values():
        assert search.explored_s >= 10.0
        assert search.given_s >= 0.9 * bed.library_s


def test_a_search_that_overran_takes_from_all_alike(storage: Storage) -> None:
    bed = Timed(late_s={2: 60.0})
    assert run(storage, bed, 100.0) <= 103.0
    for search in bed.searches.values():
        assert search.trials > 0
        assert search.given_s > 0.0


def test_a_job_of_one_keeps_its_seconds_though_opening_its_search_takes_some(storage: Storage) -> None:
    bed = Timed(open_s=5.0)
    assert run(storage, bed, 30.0, tasks=1) <= 30.5
    assert bed.searches[0].trials


def test_a_job_that_has_no_time_for_anything_ends_with_libraries(storage: Storage) -> None:
    """Not in one small piece after another, of what is left over from what passes meanwhile."""
    bed = Timed(open_s=10.0)

    def passing() -> float:
        bed.clock.now_s += 1e-3
        return bed.clock.now_s

    lease = leased(storage, (1,) * 4, budget={"seconds": 30.0})
    with Heartbeat(storage, lease, 30.0, 5.0) as heartbeat:
        job = LeasedJob(lease, storage, heartbeat, Retry())
        JobSearches(job, Tools(), bed.open, lambda: False, clock=passing).run()
    assert bed.clock() <= 1000 + 4 * 10 + 4 * bed.library_s + 5


@pytest.mark.parametrize("tasks", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_seconds_that_are_lost_with_a_device_count_once(storage: Storage, tasks: int) -> None:
    """Of a job that ran on several devices before, whose wall time counts."""
    bed, losses = Timed(), [DeviceLost("gone")]

    def opening(*given: Any, **named: Any) -> TimedSearch:
        if losses:
            bed.clock.now_s += 30.0
            raise losses.pop()
        return bed.open(*given, **named)

    lease = leased(storage, (1,) * tasks, budget={"seconds": 100.0})
    lease = replace(lease, job=replace(lease.job, summary={"wall_s": 10.0}))
    began_s = bed.clock()
    with Heartbeat(storage, lease, 30.0, 5.0) as heartbeat:
        job = LeasedJob(lease, storage, heartbeat, Retry())
        JobSearches(job, Tools(), opening, lambda: False, clock=bed.clock).run()
    assert 85.0 <= bed.clock() - began_s <= 93.0


def test_a_search_is_told_to_be_planning_before_it_is_opened(storage: Storage) -> None:
    bed = Timed()
    seen = []
    lease = leased(storage, (1,) * 2, budget={"seconds": 30.0})

    def opening(*given: Any, **named: Any) -> TimedSearch:
        events = storage.list_events(lease.job.id)
        seen.append([each.data["phase"] for each in events if each.kind == "progress"][-1])
        return bed.open(*given, **named)

    with Heartbeat(storage, lease, 30.0, 5.0) as heartbeat:
        job = LeasedJob(lease, storage, heartbeat, Retry())
        JobSearches(job, Tools(), opening, lambda: False, clock=bed.clock).run()
    assert seen == ["plan", "plan"]


def test_what_is_left_for_libraries_is_shared_by_what_each_was_promised() -> None:
    promised = [TaskProgress(1, spent_s=40.0, allowance=Budget(None, 50.0)) for _ in range(4)]
    assert ending_allowance(Budget(None, 200.0), promised, 0) == Budget(None, 50.0)
    late = [*promised[:3], TaskProgress(1, spent_s=70.0, allowance=Budget(None, 50.0))]
    assert ending_allowance(Budget(None, 200.0), late, 0).seconds == pytest.approx(40.0 + 10.0 * 10 / 33)
    assert ending_allowance(Budget(None, 200.0), promised, 0, Lanes(2, 10.0)) == Budget(None, 45.0)
    assert ending_allowance(Budget(None, 100.0), promised, 1) == Budget(None, 40.0)
    assert ending_allowance(Budget(64, None), [TaskProgress(1, 10, allowance=Budget(16, None))], 0) == Budget(16, None)
