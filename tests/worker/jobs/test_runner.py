"""A leased job's way to its end, on a real database, with a search in the place of `tune` that does as it is told."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.contract.samples import job_spec, many_tasks, results
from tests.fakes import FakeClock, FakeRunner
from tests.measuring import wait_for
from tests.worker.jobs.scripted import Script, Tools, scripted, tuned
from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.measure import BuilderLost, DeviceLost
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NO_BASELINES, PROTOCOL, Baselines, ErrorKind, Roof, TuningRecord
from tuner.schedule import space_of
from tuner.search.reuse import NOTHING, Knowledge
from tuner.search.summary import SearchSummary, Stage
from tuner.search.tuning import Cancelled, Finishing, Tuned
from tuner.storage import MAX_ATTEMPTS, Comparison, JobState, Lease, LeaseLost, NewEvent, NotFound, StorageUnavailable
from tuner.storage.jsonl import SharedRecord
from tuner.storage.sql import Storage, queue
from worker.jobs.heartbeat import Heartbeat
from worker.jobs.leased_job import LeasedJob
from worker.jobs.retry import Retry
from worker.jobs.runner import JobRunner
from worker.jobs.searches import JobSearches

LEASE_S = 5.0
BEAT_S = 0.05
SPACE = space_of(job_spec().tasks[0])


def lease_of(storage: Storage, spec: Any = None) -> Lease:
    storage.create_job(spec or job_spec())
    lease = storage.lease_job("w1", LEASE_S)
    assert lease is not None
    return lease


def runner(storage: Any, search: Script, finishing: Script | None = None, **fields: Any) -> JobRunner:
    opened = scripted(search, finishing)
    return JobRunner(storage, Tools(), open_search=opened, lease_s=LEASE_S, heartbeat_s=BEAT_S, **fields)


def until_stopped(should_stop: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not should_stop():
        assert time.monotonic() < deadline, "nobody said stop"
        time.sleep(0.01)
    raise Cancelled


def test_a_search_that_ends_leaves_a_library_and_a_completed_job(storage: Storage) -> None:
    def search(task: Any, *, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(3), [NewEvent("trials", {"count": 3})], 1.5, SearchSummary(trials=3))
        return tuned(3)

    lease = lease_of(storage)
    assert runner(storage, search).run(lease) is JobState.COMPLETED
    job = storage.get_job(lease.job.id)
    assert (job.state, job.trials) == (JobState.COMPLETED, 3)
    assert job.summary == SearchSummary(Stage.DONE, trials=3).to_json()
    row = storage.search_tasks(job.id)[0]
    assert (row.done, row.spent_s) == (True, 1.5)
    assert storage.latest_artifact(row.workload_key, job_id=job.id).digest == "d" * 64


def test_a_task_that_is_done_is_not_searched_again(storage: Storage) -> None:
    lease = lease_of(storage, many_tasks())
    first = lease.tasks[0]
    storage.save_library(lease, first.id, {"library.so": b"x"}, {"digest": "e" * 64}, {})
    storage.release_job(lease)
    again = storage.lease_job("w2", LEASE_S)
    assert again is not None
    searched: list[str] = []

    def search(task: Any, **_: Any) -> Tuned:
        searched.append(task.workload.key)
        return tuned()

    assert runner(storage, search).run(again) is JobState.COMPLETED
    assert searched == [row.workload_key for row in lease.tasks[1:]]


def test_a_search_goes_on_from_its_records(storage: Storage) -> None:
    lease = lease_of(storage)
    storage.append_results(lease, lease.tasks[0].id, results(4), spent_s=7.0)
    storage.release_job(lease)
    again = storage.lease_job("w2", LEASE_S)
    assert again is not None
    seen: dict[str, Any] = {}

    def search(task: Any, *, past: Any, spent_s: float, **_: Any) -> Tuned:
        seen.update(past=len(past), spent_s=spent_s)
        return tuned()

    runner(storage, search).run(again)
    assert seen == {"past": 4, "spent_s": 7.0}


def test_baselines_are_kept_and_not_measured_again_by_whoever_goes_on(storage: Storage) -> None:
    result = Baselines(roof=Roof(1e11, 1e10))
    known: list[Baselines] = []

    def search(task: Any, *, recorder: Any, baselines: Baselines, **_: Any) -> Tuned:
        known.append(baselines)
        if len(known) == 1:
            recorder.record_baselines(result)
            raise DeviceLost("no device 'local'")
        return tuned()

    lease = lease_of(storage)
    storage_away = Flaky(storage, 3, "save_baselines")
    assert runner(storage_away, search, retry=Retry(first_wait_s=0.001)).run(lease) is JobState.COMPLETED
    assert known == [NO_BASELINES, result]
    assert storage.search_tasks(lease.job.id)[0].baselines == result


def shared_record() -> SharedRecord:
    """A record of the job's workload as a file may have it."""
    task = job_spec().tasks[0]
    result = replace(results(1)[0], instance=WorkloadInstance.of({"m": 80}))
    place = task.workload.key, task.known_target.fingerprint, 1, PROTOCOL
    return SharedRecord(task.workload.canonical, task.known_target, TuningRecord(*place, result, job_id="elsewhere"))


def knowledge_of(storage: Storage, spec: Any, **fields: Any) -> Knowledge:
    """What the search of a new job is given."""
    seen: list[Knowledge] = []

    def search(task: Any, *, knowledge: Knowledge, **_: Any) -> Tuned:
        seen.append(knowledge)
        return tuned()

    lease = lease_of(storage, spec)
    storage.append_results(lease, lease.tasks[0].id, results(3, start=50))
    runner(storage, search, **fields).run(lease)
    (result,) = seen
    return result


def test_a_search_is_given_what_other_jobs_measured_and_not_its_own(storage: Storage) -> None:
    elsewhere = lease_of(storage, job_spec(k=128))
    storage.append_results(elsewhere, elsewhere.tasks[0].id, results(5))
    before = lease_of(storage, job_spec(name="another name", instances=[{"T": 5}]))
    failed = results(2, start=8, latency_s=None, error_kind=ErrorKind.CRASH)
    storage.append_results(before, before.tasks[0].id, [*results(4), *failed])
    result = knowledge_of(storage, job_spec())
    assert [record.job_id for record in result.records] == [before.job.id] * 6
    assert {record.result.instance.shape["m"] for record in result.records} == {80}
    assert [record.job_id for _, record in result.others] == [elsewhere.job.id] * 5
    assert result.related == ()


def test_a_job_of_no_trials_is_given_nothing_but_what_it_is_to_be_chosen_by(storage: Storage) -> None:
    before = lease_of(storage)
    storage.append_results(before, before.tasks[0].id, results(4))
    assert knowledge_of(storage, job_spec(budget={"trials": 0})) == NOTHING
    given = knowledge_of(storage, job_spec(budget={"trials": 0}), shared=[shared_record()])
    assert [each.provenance for each in given.records] == ["shared"]
    assert len(knowledge_of(storage, job_spec(), shared=[shared_record()]).records) == 5 + 2 * 3


def test_records_of_related_targets_and_of_a_file_are_given_too(storage: Storage) -> None:
    wide = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 64}
    other = {"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2}
    for target in (wide, other):
        lease = lease_of(storage, job_spec(target=target))
        storage.append_results(lease, lease.tasks[0].id, results(2))
    result = knowledge_of(storage, job_spec(), shared=[shared_record()])
    assert [target.hardware.cores for _, target, _ in result.related] == [64, 64]
    assert [record.provenance for record in result.records] == ["shared"]


def test_a_search_that_is_cancelled_may_leave_a_library_and_can_be_resumed(storage: Storage) -> None:
    lease = lease_of(storage)

    def search(task: Any, *, should_stop: Any, should_finish: Any, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(2), [], 1.0, SearchSummary())
        storage.request_cancel(lease.job.id)
        with pytest.raises(Cancelled):
            until_stopped(should_finish)
        assert not should_stop()
        raise Finishing

    def finishing(task: Any, **_: Any) -> Tuned:
        result = tuned(2)
        return replace(result, summary=replace(result.summary, ended_by="cancelled"))

    assert runner(storage, search, finishing).run(lease) is JobState.CANCELLED
    job = storage.get_job(lease.job.id)
    assert (job.state, job.trials, job.summary["ended_by"]) == (JobState.CANCELLED, 2, "cancelled")
    row = storage.search_tasks(job.id)[0]
    assert storage.latest_artifact(row.workload_key, job_id=job.id).digest == "d" * 64
    assert not row.done
    storage.resume_job(job.id)
    again = storage.lease_job("w2", LEASE_S)
    assert again is not None
    assert runner(storage, lambda task, **_: tuned(5)).run(again) is JobState.COMPLETED
    assert storage.get_job(lease.job.id).summary["trials"] == 5


def test_a_search_that_is_cancelled_too_early_leaves_none(storage: Storage) -> None:
    lease = lease_of(storage)

    def search(task: Any, *, should_finish: Any, **_: Any) -> Tuned:
        storage.request_cancel(lease.job.id)
        until_stopped(should_finish)
        return tuned()

    assert runner(storage, search).run(lease) is JobState.CANCELLED
    with pytest.raises(NotFound):
        storage.latest_artifact(lease.tasks[0].workload_key)


# -- the library that is served ---------------------------------------------------------------------------------------
def library_of(task: SearchTask, number: int) -> Tuned:
    """A library of one kernel."""
    kernel = SPACE.sample(np.random.default_rng(number))
    dispatch = Dispatcher(task, (kernel,), 0, Leaf(0)).to_json()
    manifest = {"digest": str(number) * 64, "toolchain": {}}
    files = {"library.so": bytes([number]), "manifest.json": b"{}"}
    return Tuned(files, manifest, dispatch, SearchSummary(Stage.DONE))


class Served(Tools):
    """Its runner is the synthetic device."""

    def __init__(self) -> None:
        self.fake = FakeRunner()

    def runner(self, key: str) -> Any:
        return self.fake


def test_the_new_library_is_compared_with_the_one_that_is_served(storage: Storage) -> None:
    given: list[Comparison | None] = []
    save = storage.save_library

    def spy(*args: Any, **more: Any) -> Any:
        given.append(more["comparison"])
        return save(*args, **more)

    storage.save_library = spy  # type: ignore[method-assign]
    kept: list[float] = []

    def search(task: SearchTask, *, after_s: float, **_: Any) -> Tuned:
        kept.append(after_s)
        return library_of(task, len(kept))

    tools = Served()
    for spec in (job_spec(), job_spec(budget={"seconds": 50}), job_spec(budget={"trials": 0})):
        run = JobRunner(storage, tools, open_search=scripted(search), lease_s=LEASE_S, heartbeat_s=BEAT_S)
        assert run.run(lease_of(storage, spec)) is JobState.COMPLETED
    first, second, theory = given
    assert first is None and second is not None and theory is not None
    # Beside the comparison, what the job took before its search was charged with anything.
    assert kept[0] == 0.0
    assert 5.0 <= kept[1] < 50.0
    assert second.against == "1" * 64
    assert second.verified and theory.verified
    assert len({kernel for kernel, _ in tools.fake.ran}) == 3
    job = storage.list_jobs().items[1]
    said = [event.data["message"] for event in storage.list_events(job.id) if event.kind == "log"]
    assert re.fullmatch(r"(\S+ (over|to)) the library served before \(111111111111\) \(\S+x to \S+x\)", said[-1])


@pytest.mark.parametrize(
    ("run_s", "sample_s", "spent_s", "most_s", "is_compared"),
    [(0.25, 0.01, 40.0, 20.0, True), (1.0, 10.0, 40.0, 30.0, False), (1.0, 1.0, 100.0, 7.0, False)],
    ids=["in time", "takes too long", "no time is left"],
)
def test_what_a_comparison_takes_counts_and_is_bounded(
    storage: Storage, run_s: float, sample_s: float, spent_s: float, most_s: float, is_compared: bool
) -> None:
    """It is a phase of its own, and a part of the seconds that the task and the job took. The synthetic device ends a
    trial before it looks whether it is interrupted."""
    clock, tools = FakeClock(), Served()
    tools.fake.clock, tools.fake.run_s, tools.fake.sample_s = clock, run_s, sample_s
    give_up = tools.fake.run

    def run(task: SearchTask, requests: Any, interrupted: Callable[[], bool] = lambda: False) -> Any:
        results = give_up(task, requests, interrupted)
        return [] if interrupted() else results

    tools.fake.run = run  # type: ignore[method-assign]
    for number in (1, 2):

        def search(task: SearchTask, number: int = number, **_: Any) -> Tuned:
            found = library_of(task, number)
            return replace(found, summary=replace(found.summary, elapsed_s=spent_s))

        lease = lease_of(storage, job_spec(budget={"seconds": 100}))
        began_s = clock()
        with Heartbeat(storage, lease, LEASE_S, BEAT_S) as heartbeat:
            job = LeasedJob(lease, storage, heartbeat, Retry())
            JobSearches(job, tools, scripted(search), lambda: False, clock=clock).run()
            job.finish(JobState.COMPLETED)
    took_s = clock() - began_s
    assert 0 < took_s <= most_s
    (row,) = storage.search_tasks(lease.job.id)
    assert row.spent_s == pytest.approx(spent_s + took_s)
    events = storage.list_events(lease.job.id)
    told = [(each.data["phase"], each.data["elapsed_s"]) for each in events if each.kind == "progress"]
    assert told[-2:] == [("compare", spent_s), ("done", pytest.approx(spent_s + took_s))]
    said = [each.data["message"] for each in events if each.kind == "log"]
    assert ("not compared with the library" in said[-1]) != is_compared
    assert "the library served before" in said[-1]
    ((_, library),) = storage.libraries_of_job(lease.job.id)
    assert (library.comparison is not None) == is_compared


def test_a_device_that_is_lost_in_the_comparison_costs_the_job_nothing_else(storage: Storage) -> None:
    tools = Served()
    tools.fake.run = lost  # type: ignore[method-assign]
    for number in (1, 2):
        search = partial(lambda task, number, **_: library_of(task, number), number=number)
        run = JobRunner(storage, tools, open_search=scripted(search), lease_s=LEASE_S, heartbeat_s=BEAT_S)
        assert run.run(lease_of(storage)) is JobState.COMPLETED
    job = storage.list_jobs().items[0]
    said = [event.data["message"] for event in storage.list_events(job.id) if event.kind == "log"]
    assert any("is not compared with the one that is served" in message for message in said)
    assert storage.latest_artifact(storage.search_tasks(job.id)[0].workload_key).digest == "2" * 64


def lost(task: Any, requests: Any, interrupted: Any = None) -> Any:
    raise DeviceLost("gone")


def test_a_worker_that_is_told_to_stop_gives_the_job_back(storage: Storage) -> None:
    lease = lease_of(storage)
    stop = threading.Event()

    def search(task: Any, *, should_stop: Any, **_: Any) -> Tuned:
        stop.set()
        until_stopped(should_stop)
        return tuned()

    assert runner(storage, search, stopping=stop.is_set).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.WAITING


def test_an_error_while_stopping_gives_the_job_back(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    lease = lease_of(storage)
    stop = threading.Event()

    def search(task: Any, **_: Any) -> Tuned:
        stop.set()
        raise ValueError("I/O operation on closed file")

    assert runner(storage, search, stopping=stop.is_set).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.WAITING
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_worker_that_lost_its_lease_stops_and_writes_nothing(storage: Storage) -> None:
    storage.create_job(job_spec())
    lease = storage.lease_job("w1", 0.01)
    assert lease is not None
    time.sleep(0.05)
    other = storage.lease_job("w2", 60.0)
    assert other is not None

    def search(task: Any, *, should_stop: Any, recorder: Any, **_: Any) -> Tuned:
        with pytest.raises(Cancelled):
            until_stopped(should_stop)
        with pytest.raises(LeaseLost):
            recorder.record(results(3), [], 1.0, SearchSummary())
        raise Cancelled

    assert runner(storage, search).run(lease) is None
    job = storage.get_job(lease.job.id)
    assert (job.state, job.epoch, job.trials, job.summary) == (JobState.RUNNING, other.epoch, 0, {})


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InvalidInput("workload.op", "has no rule"), "workload.op: has no rule"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_search_that_fails_ends_the_job_with_its_reason(storage: Storage, error: Exception, says: str) -> None:
    def search(task: Any, **_: Any) -> Tuned:
        raise error

    lease = lease_of(storage)
    assert runner(storage, search).run(lease) is JobState.FAILED
    assert storage.get_job(lease.job.id).error == says


@pytest.mark.parametrize("loss", [DeviceLost("no device 'local'"), BuilderLost("Ray died")])
def test_a_lost_device_or_builder_is_tried_again(storage: Storage, loss: Exception) -> None:
    attempts: list[int] = []

    def search(task: Any, *, recorder: Any, past: Any, **_: Any) -> Tuned:
        attempts.append(len(past))
        if len(attempts) <= 4:
            # Something is recorded each time, so that this is not one loss after another.
            recorder.record(results(1, start=len(attempts)), [], 1.0, SearchSummary())
            raise loss
        return tuned()

    lease = lease_of(storage)
    assert runner(storage, search).run(lease) is JobState.COMPLETED
    assert attempts == [0, 1, 2, 3, 4]
    said = [event.data["message"] for event in storage.list_events(lease.job.id) if event.kind == "log"]
    assert len(said) == 4 and str(loss) in said[0]


def test_a_device_that_stays_away_fails_the_job_after_several_attempts(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "FIRST_WAIT_S", 0.001)

    def search(task: Any, **_: Any) -> Tuned:
        raise DeviceLost("no device 'local' from tracker 127.0.0.1:1")

    lease = lease_of(storage)
    for number in range(1, MAX_ATTEMPTS):
        assert runner(storage, search).run(lease) is JobState.WAITING
        job = storage.get_job(lease.job.id)
        assert (job.failed_attempts, "no device 'local'" in job.error) == (number, True)
        lease = wait_for_lease(storage)
    assert runner(storage, search).run(lease) is JobState.FAILED
    assert "no device 'local'" in storage.get_job(lease.job.id).error


def wait_for_lease(storage: Storage) -> Lease:
    given: list[Lease] = []

    def is_given() -> bool:
        lease = storage.lease_job("w2", LEASE_S)
        given.extend([lease] if lease else [])
        return lease is not None

    wait_for(is_given)
    return given[0]


class Flaky:
    """A storage that is away for the first ``outage`` calls of each name in ``names``."""

    def __init__(self, storage: Storage, outage: int, *names: str) -> None:
        self._storage = storage
        self._left = dict.fromkeys(names, outage)

    def __getattr__(self, name: str) -> Any:
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1

            def away(*_: Any, **__: Any) -> None:
                raise StorageUnavailable("the database is away")

            return away
        return getattr(self._storage, name)


def test_an_outage_loses_nothing(storage: Storage) -> None:
    def search(task: Any, *, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(3), [], 1.0, SearchSummary())
        return tuned()

    names = ("append_results", "save_library", "finish_job", "records_of_task", "heartbeat")
    lease = lease_of(storage)
    retry = Retry(first_wait_s=0.001)
    assert runner(Flaky(storage, 3, *names), search, retry=retry).run(lease) is JobState.COMPLETED
    assert storage.get_job(lease.job.id).trials == 3


def test_an_outage_beyond_the_retries_leaves_the_job_to_others(storage: Storage) -> None:
    def search(task: Any, *, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(3), [], 1.0, SearchSummary())
        return tuned()

    lease = lease_of(storage)
    retry = Retry(limit_s=0.01, first_wait_s=0.004)
    assert runner(Flaky(storage, 10**6, "append_results"), search, retry=retry).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.RUNNING


def test_heartbeats_keep_a_lease_past_its_first_time(storage: Storage) -> None:
    storage.create_job(job_spec())
    lease = storage.lease_job("w1", 0.6)
    assert lease is not None
    with Heartbeat(storage, lease, lease_s=0.6, every_s=0.1) as heartbeat:
        time.sleep(1.2)
        assert storage.lease_job("w2", 60.0) is None
        assert not heartbeat.lost()
