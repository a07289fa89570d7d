"""A leased job's way to its end, on a real database, with a search in the place of `tune` that does as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.samples import job_spec, many_tasks, results
from tuner.errors import InvalidInput
from tuner.measure import BuilderLost, DeviceLost
from tuner.records import NO_BASELINES, Baselines, Roof
from tuner.search.summary import SearchSummary, Stage
from tuner.search.tuning import Cancelled, Tuned
from tuner.storage import JobState, Lease, LeaseLost, NewEvent, StorageUnavailable
from tuner.storage.sql import SqlStorage, open_storage
from worker.heartbeat import Heartbeat
from worker.job_runner import JobRunner
from worker.retry import Retry

LEASE_S = 5.0
BEAT_S = 0.05
Search = Callable[..., Tuned]


class Tools:
    """Hands out nothing that works: the searches here neither build nor measure."""

    def builder(self) -> Any:
        return self

    def runner(self, key: str) -> Any:
        return self

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def storage(sqlite_url: str) -> Iterator[SqlStorage]:
    found = open_storage(sqlite_url)
    yield found
    found.close()


def tuned(trials: int = 1) -> Tuned:
    manifest = {"digest": "d" * 64}
    summary = SearchSummary(Stage.DONE, trials=trials)
    return Tuned({"library.so": b"so", "manifest.json": b"{}"}, manifest, {"format": 1}, summary)


def lease_of(storage: SqlStorage, spec: Any = None) -> Lease:
    storage.create_job(spec or job_spec())
    lease = storage.lease_job("w1", LEASE_S)
    assert lease is not None
    return lease


def runner(storage: Any, search: Search, **fields: Any) -> JobRunner:
    return JobRunner(storage, Tools(), tune=search, lease_s=LEASE_S, heartbeat_s=BEAT_S, **fields)


def until_stopped(should_stop: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not should_stop():
        assert time.monotonic() < deadline, "nobody said stop"
        time.sleep(0.01)
    raise Cancelled


def test_a_search_that_ends_leaves_a_library_and_a_completed_job(storage: SqlStorage) -> None:
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


def test_tasks_are_searched_in_order_each_with_its_share(storage: SqlStorage) -> None:
    budgets: list[int | None] = []

    def search(task: Any, *, budget: Any, recorder: Any, **_: Any) -> Tuned:
        budgets.append(budget.trials)
        recorder.record(results(2, start=10 * len(budgets)), [], 1.0, SearchSummary())
        return tuned(len(budgets))

    lease = lease_of(storage, many_tasks())
    assert runner(storage, search).run(lease) is JobState.COMPLETED
    # Counts 1, 12, 1 of 64 trials; each task uses two of its share.
    assert budgets == [5, 58, 60]
    tasks = storage.get_job(lease.job.id).summary["tasks"]
    assert {position: summary["trials"] for position, summary in tasks.items()} == {"0": 1, "1": 2, "2": 3}


def test_a_task_that_is_done_is_not_searched_again(storage: SqlStorage) -> None:
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


def test_a_search_goes_on_from_its_records(storage: SqlStorage) -> None:
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


def test_baselines_are_kept_and_not_measured_again_by_whoever_goes_on(storage: SqlStorage) -> None:
    found = Baselines(roof=Roof(1e11, 1e10))
    known: list[Baselines] = []

    def search(task: Any, *, recorder: Any, baselines: Baselines, **_: Any) -> Tuned:
        known.append(baselines)
        if len(known) == 1:
            recorder.record_baselines(found)
            raise DeviceLost("no device 'local'")
        return tuned()

    lease = lease_of(storage)
    storage_away = Flaky(storage, 3, "save_baselines")
    assert runner(storage_away, search, retry=Retry(first_wait_s=0.001)).run(lease) is JobState.COMPLETED
    assert known == [NO_BASELINES, found]
    assert storage.search_tasks(lease.job.id)[0].baselines == found


def test_other_jobs_records_on_the_target_warm_a_search_up_and_its_own_do_not(storage: SqlStorage) -> None:
    rule = results(1)[0].kernel.rule
    before = lease_of(storage, job_spec(k=128))
    storage.append_results(before, before.tasks[0].id, results(5))
    lease = lease_of(storage)
    storage.append_results(lease, lease.tasks[0].id, results(3))
    seen: list[int] = []

    def search(task: Any, *, warm: Any, **_: Any) -> Tuned:
        seen.append(len(warm))
        return tuned()

    runner(storage, search).run(lease)
    assert rule == "x86_contraction"
    assert seen == [5]


def test_cancelling_is_noticed_in_mid_search(storage: SqlStorage) -> None:
    lease = lease_of(storage)

    def search(task: Any, *, should_stop: Any, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(2), [], 1.0, SearchSummary())
        storage.request_cancel(lease.job.id)
        until_stopped(should_stop)
        return tuned()

    assert runner(storage, search).run(lease) is JobState.CANCELLED
    job = storage.get_job(lease.job.id)
    assert (job.state, job.trials) == (JobState.CANCELLED, 2)


def test_a_worker_that_is_told_to_stop_gives_the_job_back(storage: SqlStorage) -> None:
    lease = lease_of(storage)
    stop = threading.Event()

    def search(task: Any, *, should_stop: Any, **_: Any) -> Tuned:
        stop.set()
        until_stopped(should_stop)
        return tuned()

    assert runner(storage, search, stopping=stop.is_set).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.WAITING


def test_an_error_while_stopping_gives_the_job_back(
    storage: SqlStorage, caplog: pytest.LogCaptureFixture
) -> None:
    lease = lease_of(storage)
    stop = threading.Event()

    def search(task: Any, **_: Any) -> Tuned:
        stop.set()
        raise ValueError("I/O operation on closed file")

    assert runner(storage, search, stopping=stop.is_set).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.WAITING
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_worker_that_lost_its_lease_stops_and_writes_nothing(storage: SqlStorage) -> None:
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
def test_a_search_that_fails_ends_the_job_with_its_reason(storage: SqlStorage, error: Exception, says: str) -> None:
    def search(task: Any, **_: Any) -> Tuned:
        raise error

    lease = lease_of(storage)
    assert runner(storage, search).run(lease) is JobState.FAILED
    assert storage.get_job(lease.job.id).error == says


@pytest.mark.parametrize("loss", [DeviceLost("no device 'local'"), BuilderLost("Ray died")])
def test_a_lost_device_or_builder_is_tried_again(storage: SqlStorage, loss: Exception) -> None:
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


def test_a_device_that_stays_away_fails_the_job(storage: SqlStorage) -> None:
    def search(task: Any, **_: Any) -> Tuned:
        raise DeviceLost("no device 'local' from tracker 127.0.0.1:1")

    lease = lease_of(storage)
    assert runner(storage, search).run(lease) is JobState.FAILED
    assert "no device 'local'" in storage.get_job(lease.job.id).error


class Flaky:
    """A storage that is away for the first ``outage`` calls of each name in ``names``."""

    def __init__(self, storage: SqlStorage, outage: int, *names: str) -> None:
        self._storage = storage
        self._left = dict.fromkeys(names, outage)

    def __getattr__(self, name: str) -> Any:
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1

            def away(*_: Any, **__: Any) -> None:
                raise StorageUnavailable("the database is away")

            return away
        return getattr(self._storage, name)


def test_an_outage_loses_nothing(storage: SqlStorage) -> None:
    def search(task: Any, *, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(3), [], 1.0, SearchSummary())
        return tuned()

    names = ("append_results", "save_library", "finish_job", "records_of_task", "heartbeat")
    lease = lease_of(storage)
    retry = Retry(first_wait_s=0.001)
    assert runner(Flaky(storage, 3, *names), search, retry=retry).run(lease) is JobState.COMPLETED
    assert storage.get_job(lease.job.id).trials == 3


def test_an_outage_beyond_the_retries_leaves_the_job_to_others(storage: SqlStorage) -> None:
    def search(task: Any, *, recorder: Any, **_: Any) -> Tuned:
        recorder.record(results(3), [], 1.0, SearchSummary())
        return tuned()

    lease = lease_of(storage)
    retry = Retry(limit_s=0.01, first_wait_s=0.004)
    assert runner(Flaky(storage, 10**6, "append_results"), search, retry=retry).run(lease) is None
    assert storage.get_job(lease.job.id).state is JobState.RUNNING


def test_heartbeats_keep_a_lease_past_its_first_time(storage: SqlStorage) -> None:
    storage.create_job(job_spec())
    lease = storage.lease_job("w1", 0.6)
    assert lease is not None
    with Heartbeat(storage, lease, lease_s=0.6, every_s=0.1) as heartbeat:
        time.sleep(1.2)
        assert storage.lease_job("w2", 60.0) is None
        assert not heartbeat.lost()
