"""The worker's main loop while the database is not the one that it wants."""

from __future__ import annotations

import logging
import threading

import pytest
from sqlalchemy import text

from tests.contract.samples import expire, job_spec, leased
from tests.measuring import wait_for
from tuner.measure import BuilderLost
from tuner.storage import JobState, Lease
from tuner.storage.sql import Storage, open_storage
from tuner.storage.sql.migrate import head
from worker.jobs.lease_loop import LeaseLoop


class NoList:
    """A list of devices that never changes."""

    def refresh(self, force: bool = False) -> dict[str, int]:
        return {"local": 1}


def set_revision(storage: Storage, revision: str) -> None:
    with storage._database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def test_a_worker_of_an_earlier_version_waits_and_says_what_to_do(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.jobs.lease_loop.OUTAGE_WAIT_S", 0.05)
    storage = open_storage(sqlite_url)
    storage.create_job(job_spec())
    set_revision(storage, "9999")
    stop = threading.Event()
    taken: list[Lease] = []
    loop = LeaseLoop(storage, NoList(), taken.append, "old", stop)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_forever)
    with caplog.at_level(logging.WARNING):
        thread.start()
        try:
            wait_for(lambda: "older than its database: update it on this machine" in caplog.text)
            assert taken == []
            set_revision(storage, head())
            wait_for(lambda: len(taken) == 1)
        finally:
            stop.set()
            thread.join(20)
    storage.close()


class NoDevices:
    """A tracker that lists nothing."""

    def refresh(self, force: bool = False) -> dict[str, int]:
        return {}


def test_a_job_being_cancelled_ends_though_no_device_is_left(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url)
    lease = leased(storage)
    storage.request_cancel(lease.job.id)
    expire(storage, lease)
    stop = threading.Event()
    loop = LeaseLoop(storage, NoDevices(), lambda lease: None, "w2", stop)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        wait_for(lambda: storage.get_job(lease.job.id).state is JobState.CANCELLED)
    finally:
        stop.set()
        thread.join(20)
    storage.close()


def test_no_job_is_leased_while_nothing_can_be_built(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.jobs.lease_loop.OUTAGE_WAIT_S", 0.01)
    storage = open_storage(sqlite_url)
    storage.create_job(job_spec())
    stop = threading.Event()
    taken: list[Lease] = []
    refusals: list[int] = []
    is_back = threading.Event()

    def maintain() -> None:
        if not is_back.is_set():
            refusals.append(len(taken))
            raise BuilderLost("Ray did not start")

    loop = LeaseLoop(storage, NoList(), taken.append, "w", stop, maintain=maintain)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        wait_for(lambda: len(refusals) >= 3)
        assert set(refusals) == {0}
        is_back.set()
        wait_for(lambda: len(taken) == 1)
    finally:
        stop.set()
        thread.join(20)
    storage.close()


def test_nothing_that_a_job_does_ends_the_worker(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.jobs.lease_loop.OUTAGE_WAIT_S", 0.01)
    storage = open_storage(sqlite_url)
    for _ in range(2):
        storage.create_job(job_spec())
    stop, taken = threading.Event(), []

    def run(lease: Lease) -> None:
        taken.append(lease.job.id)
        if len(taken) == 1:
            raise AttributeError("Module has no function")

    thread = threading.Thread(target=LeaseLoop(storage, NoList(), run, "w", stop).run_forever)  # type: ignore[arg-type]
    thread.start()
    try:
        wait_for(lambda: len(taken) == 2)
    finally:
        stop.set()
        thread.join(20)
    storage.close()
    assert "Module has no function" in caplog.text


class Devices:
    """As many of the key as somebody says."""

    def __init__(self, count: int) -> None:
        self.count = count

    def refresh(self, force: bool = False) -> dict[str, int]:
        return {"local": self.count}


@pytest.mark.parametrize(("devices", "most", "at_once"), [(1, 16, 1), (3, 16, 3), (3, 2, 2)])
def test_as_many_jobs_run_at_once_as_there_are_devices(sqlite_url: str, devices: int, most: int, at_once: int) -> None:
    storage = open_storage(sqlite_url)
    for _ in range(5):
        storage.create_job(job_spec())
    stop, go, running, ended = threading.Event(), threading.Event(), [], []

    def run(lease: Lease) -> None:
        running.append(lease.job.id)
        go.wait(60)
        storage.finish_job(lease, JobState.COMPLETED)
        ended.append(lease.job.id)

    loop = LeaseLoop(storage, Devices(devices), run, "w", stop, poll_s=0.01, most=most)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        wait_for(lambda: len(running) == at_once)
        assert len(storage.list_jobs(state=JobState.RUNNING).items) == at_once
        go.set()
        wait_for(lambda: len(ended) == 5)
    finally:
        go.set()
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    storage.close()
