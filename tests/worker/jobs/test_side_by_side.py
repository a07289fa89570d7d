"""Searches of one job that run at once where its key has several devices."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from benchmarks.workers import SimulatedTools
from tests.contract.samples import JOB, results
from tests.fakes import FakeClock
from tests.measuring import wait_for
from tests.worker.budget.curves import Bed, CurveSearch, flat, leased, run, trials_of
from tests.worker.jobs.scripted import Tools, tuned
from tuner.errors import InvalidInput
from tuner.measure import BuilderLost, DeviceLost
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import Budget, parse_job
from tuner.search.summary import EndedBy, JobSummary, SearchSummary, Stage
from tuner.search.tuning import Cancelled, SearchStart, SearchTools, Tuned
from tuner.storage import JobState, LeaseLost, NotFound, StorageUnavailable
from tuner.storage.sql import Storage
from worker.jobs import open_searches, searches
from worker.jobs import runner as job_runner
from worker.jobs.heartbeat import Heartbeat
from worker.jobs.leased_job import LeasedJob
from worker.jobs.retry import Retry
from worker.jobs.runner import JobRunner
from worker.jobs.searches import JobSearches

WAIT_S = 60.0


def together(bed: Bed, lanes: int) -> None:
    """The first piece of each search ends when as many are under way."""
    barrier = threading.Barrier(lanes)

    def meet(search: CurveSearch) -> None:
        if [position for position, _ in bed.explored].count(search.position) == 1 and len(bed.opened) <= lanes:
            barrier.wait(WAIT_S)

    bed.before = meet


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_as_many_are_explored_at_once_as_there_are_devices_and_tasks(storage: Storage, devices: int) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    together(bed, min(3, devices))
    assert run(storage, bed, lease, devices) is JobState.COMPLETED
    assert bed.at_once == min(3, devices)
    trials = trials_of(storage, lease)
    assert sum(trials) == storage.get_job(lease.job.id).trials == 192
    assert min(trials) >= 32
    assert sorted(bed.opened) == [0, 1, 2]
    assert all(row.done for row in storage.search_tasks(lease.job.id))


def test_on_one_device_there_is_one_at_a_time(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    assert run(storage, bed, lease, devices=1) is JobState.COMPLETED
    assert bed.at_once == 1
    assert "wall_s" not in storage.get_job(lease.job.id).summary


def test_there_are_no_more_lanes_than_are_allowed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "MAX_LANES", 2)
    lease, bed = leased(storage, (1, 1, 1, 1)), Bed([flat] * 4)
    together(bed, 2)
    assert run(storage, bed, lease, devices=8) is JobState.COMPLETED
    assert bed.at_once == 2


def test_trials_go_by_gain_and_not_by_speed(storage: Storage) -> None:
    lease, bed = leased(storage, (1, 12, 1)), Bed([flat] * 3)

    def linger(search: CurveSearch) -> None:
        if search.position == 1:
            wait_for(lambda: bed.running == {1})

    bed.before = linger
    assert run(storage, bed, lease, devices=3) is JobState.COMPLETED
    assert trials_of(storage, lease) == [32, 128, 32]


def test_a_search_that_is_running_stays_in_memory(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_searches, "MAX_LIVE", 2)
    lease, bed = leased(storage, (1,) * 5, trials=400), Bed([flat] * 5)
    most: list[int] = []

    def look(search: CurveSearch) -> None:
        most.append(len(bed.live))
        assert bed.running <= bed.live

    bed.before = look
    assert run(storage, bed, lease, devices=8) is JobState.COMPLETED
    assert max(most) <= 2
    assert len(bed.opened) > 5
    assert sum(trials_of(storage, lease)) == 400


def test_the_summary_is_of_all_tasks(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    together(bed, 3)
    run(storage, bed, lease, devices=3)
    summary = storage.get_job(lease.job.id).summary
    assert summary["wall_s"] >= 0
    tasks = JobSummary.from_json(summary).tasks
    assert {position: each.trials for position, each in tasks.items()} == dict(enumerate(trials_of(storage, lease)))
    numbers = [event.seq for event in storage.list_events(lease.job.id)]
    assert numbers == sorted(set(numbers))


# -- one lane fails, or the job is cancelled --------------------------------------------------------------------------
def one_raises(bed: Bed, error: BaseException) -> list[int]:
    """The first piece of task 1 raises once another is under way, which ends when it is told to stop; the positions
    that were."""
    both = threading.Barrier(2)
    stopped: list[int] = []

    def meet(search: CurveSearch) -> None:
        if search.position > 1 or len(stopped) or bed.opened.count(search.position) > 1:
            return
        both.wait(WAIT_S)
        if search.position == 1:
            raise error
        wait_for(search.should_stop)
        stopped.append(search.position)
        raise Cancelled

    bed.before = meet
    return stopped


@pytest.mark.parametrize("loss", [DeviceLost("gone"), BuilderLost("gone")])
def test_a_loss_in_one_lane_stops_the_others_and_costs_nothing_that_was_recorded(
    storage: Storage, loss: Exception
) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    stopped = one_raises(bed, loss)
    assert run(storage, bed, lease, devices=2) is JobState.COMPLETED
    assert stopped == [0]
    assert sum(trials_of(storage, lease)) == 192
    said = [event.data["message"] for event in storage.list_events(lease.job.id) if event.kind == "log"]
    assert said == ["gone; retrying (1 of 2)"]


@pytest.mark.parametrize(
    ("error", "state", "left"),
    [
        (InvalidInput("workload.op", "has no rule"), JobState.FAILED, JobState.FAILED),
        (LeaseLost("another has it"), None, JobState.RUNNING),
        (StorageUnavailable("away"), None, JobState.RUNNING),
    ],
)
def test_what_one_lane_raises_ends_the_job_as_it_does_on_one(
    storage: Storage, error: Exception, state: JobState | None, left: JobState
) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    stopped = one_raises(bed, error)
    assert run(storage, bed, lease, devices=2) is state
    assert stopped == [0]
    assert storage.get_job(lease.job.id).state is left


def test_all_lanes_together_wait_no_longer_for_the_database_than_one_does(storage: Storage) -> None:
    lease, clock, calls = leased(storage), FakeClock(), []

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    def away() -> None:
        calls.append(clock())
        raise StorageUnavailable("away")

    retry = Retry(limit_s=10.0, first_wait_s=1.0, clock=clock, sleep=sleep)
    job = LeasedJob(lease, storage, Heartbeat(storage, lease), retry)
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            job.attempt(away)
    assert calls == [1000.0, 1001.0, 1003.0, 1007.0, 1007.0, 1007.0]


def test_losses_in_several_lanes_at_once_are_one(storage: Storage) -> None:
    lease, bed = leased(storage, trials=0), Bed([flat] * 3)
    both = threading.Barrier(3)
    raised: list[int] = []

    def lose(search: CurveSearch) -> None:
        if len(raised) < 3:
            both.wait(WAIT_S)
            raised.append(search.position)
            raise DeviceLost("gone")

    bed.before = lose
    assert run(storage, bed, lease, devices=3) is JobState.COMPLETED
    said = [event.data["message"] for event in storage.list_events(lease.job.id) if event.kind == "log"]
    assert said == ["gone; retrying (1 of 2)"]


def test_a_cancelled_job_leaves_a_library_of_each_search_that_was_running(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    both = threading.Barrier(2)

    def cancel(search: CurveSearch) -> None:
        if both.wait(WAIT_S) == 0:
            storage.request_cancel(lease.job.id)
        wait_for(search.should_finish)
        assert not search.should_stop()

    bed.before = cancel
    assert run(storage, bed, lease, devices=2) is JobState.CANCELLED
    assert sorted(bed.finished) == [0, 1]
    rows = storage.search_tasks(lease.job.id)
    for row in rows[:2]:
        assert storage.latest_artifact(row.workload_key, job_id=lease.job.id).digest == f"{row.position}" * 64
    with pytest.raises(NotFound):
        storage.latest_artifact(rows[2].workload_key)


def test_a_device_that_is_lost_while_the_job_is_cancelled_costs_no_library(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    both = threading.Barrier(2)

    def cancel(search: CurveSearch) -> None:
        both.wait(WAIT_S)
        if search.position == 1:
            storage.request_cancel(lease.job.id)
            wait_for(search.should_finish)
            raise DeviceLost("gone")
        wait_for(search.should_finish)

    bed.before = cancel
    assert run(storage, bed, lease, devices=2) is JobState.CANCELLED
    assert sorted(bed.finished) == [0, 1]


def test_a_worker_that_is_told_to_stop_gives_the_job_back(storage: Storage) -> None:
    lease, bed, stop = leased(storage), Bed([flat] * 3), threading.Event()
    both = threading.Barrier(2)

    def halt(search: CurveSearch) -> None:
        both.wait(WAIT_S)
        stop.set()
        wait_for(search.should_stop)
        raise Cancelled

    bed.before = halt
    runner = JobRunner(storage, Tools(2), open_search=bed.open, heartbeat_s=0.05, stopping=stop.is_set)
    assert runner.run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.WAITING
    assert bed.live == set()


# -- wall time --------------------------------------------------------------------------------------------------------
class TimedSearch:
    """Takes a part of what it is allowed, by a clock that all share."""

    def __init__(self, bed: TimedBed, recorder: Any, start: SearchStart) -> None:
        self.bed, self.recorder, self.spent_s, self.trials = bed, recorder, start.spent_s, len(start.past)

    @property
    def summary(self) -> SearchSummary:
        objective_s = 1e-3 if self.trials else None
        return SearchSummary(Stage.SEARCH, trials=self.trials, elapsed_s=self.spent_s, objective_s=objective_s)

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        self.bed.allowed.append(budget.seconds or 0.0)
        self.bed.meet()
        self.spent_s += self.bed.takes_s
        made = results(2, start=100 * self.recorder._row.position + self.trials)
        self.trials += len(made)
        self.recorder.record(made, [], self.spent_s, self.summary)
        return self.bed.end()

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        result = tuned(self.trials)
        return replace(result, summary=replace(result.summary, elapsed_s=self.spent_s))

    def finish(self, job_id: str | None, within_s: float = 0.0) -> Tuned:
        raise Cancelled

    def close(self) -> None:
        """Nothing to end."""


class TimedBed:
    """Each of ``lanes`` searches takes ``takes_s`` at a time, at the same time; then the worker dies."""

    def __init__(self, clock: FakeClock, lanes: int, takes_s: float, *, dies: bool) -> None:
        self.takes_s, self.dies = takes_s, dies
        self.allowed: list[float] = []
        self._met = threading.Barrier(lanes, action=partial(self._pass, clock))
        self._recorded = threading.Barrier(lanes)

    def _pass(self, clock: FakeClock) -> None:
        clock.now_s += self.takes_s

    def meet(self) -> None:
        self._met.wait(WAIT_S)

    def end(self) -> EndedBy:
        if self.dies:
            self._recorded.wait(WAIT_S)
            raise SystemExit
        return EndedBy.SECONDS

    def open(self, task: Any, tools: SearchTools, start: SearchStart, **_: Any) -> TimedSearch:
        return TimedSearch(self, tools.recorder, start)


def test_seconds_are_of_each_lane_and_another_worker_knows_what_the_job_took(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(job_runner, "JobSearches", partial(JobSearches, clock=clock))
    lease = leased(storage, (1, 1), budget={"seconds": 100})
    first = TimedBed(clock, 2, 40.0, dies=True)
    with pytest.raises(SystemExit):
        JobRunner(storage, Tools(2), open_search=first.open).run(lease)
    assert first.allowed == [50.0, 50.0], "half of 100 s on each of two lanes"
    assert storage.get_job(lease.job.id).summary["wall_s"] == 40.0
    assert [row.spent_s for row in storage.search_tasks(lease.job.id)] == [40.0, 40.0]
    storage.release_job(lease)
    again = storage.lease_job("w2", 30.0)
    assert again is not None
    second = TimedBed(clock, 1, 0.0, dies=False)
    assert JobRunner(storage, Tools(1), open_search=second.open).run(again) is JobState.COMPLETED
    # Each has had 40 s. 60 s of the clock are left, on one device: the last one may have them all.
    assert max(second.allowed) == 100.0


# -- real searches ----------------------------------------------------------------------------------------------------
@pytest.mark.soak
def test_real_searches_on_a_fleet_end_with_libraries_of_what_they_measured(storage: Storage) -> None:
    fleet, trials = Fleet(4), 150
    plain = {name: value for name, value in JOB.items() if name != "workload"}
    workloads = [{"op": "dense", "args": {"m": "16*T", "n": 256, "k": 64 * (number + 1)}} for number in range(3)]
    spec = parse_job({**plain, "workloads": workloads, "budget": {"trials": trials}})
    job_id = storage.create_job(spec)[0].id
    lease = storage.lease_job("w", 60.0)
    assert lease is not None
    assert JobRunner(storage, SimulatedTools(fleet)).run(lease) is JobState.COMPLETED
    job, rows = storage.get_job(job_id), storage.search_tasks(job_id)
    assert job.trials == sum(len(storage.records_of_task(row.id)) for row in rows) <= trials
    for row in rows:
        summary = job.summary["tasks"][str(row.position)]
        assert summary["trials"] == len(storage.records_of_task(row.id)) > 0
        assert summary["library_objective_s"] is not None
    # Each device was given back.
    assert sorted(fleet.take(lambda: False, 0.0) for _ in range(4)) == [0, 1, 2, 3]
