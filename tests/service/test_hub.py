"""The hub that wakes event streams: who is woken, when, and what it costs while nothing happens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from service.jobs.hub import EventHub
from tests.serving import JOB, lease, without_table
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import NewEvent
from tuner.storage.sql import Storage, open_storage
from tuner.storage.sql.events import CommitWatch

POLL_S = 0.005
LONG_S = 20.0


class Counting:
    """A storage that counts how often it is asked for the newest events."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.asked = 0

    def last_events(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        self.asked += 1
        return self._storage.last_events(job_ids)

    def watch_commits(self) -> CommitWatch:
        return self._storage.watch_commits()

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)


@pytest.fixture
def other(database: Path, storage: Storage) -> Iterator[Storage]:
    """The same database as another process has it."""
    opened = open_storage(f"sqlite:///{database}")
    yield opened
    opened.close()


def new_job(storage: Storage) -> str:
    return storage.create_job(parse_job(JOB).on(native()))[0].id


async def rings(hub: EventHub, job_id: str, then: threading.Event, within_s: float, first: bool = True) -> bool:
    """Whether a stream of the job is woken after ``then`` was set; a job's first one is woken as it begins, too."""
    with hub.listening(job_id) as bell:
        if first:
            await bell.wait(LONG_S)
            bell.clear()
        then.set()
        started = time.monotonic()
        await bell.wait(within_s)
        return time.monotonic() - started < within_s


def test_an_event_wakes_the_streams_of_its_job_alone(storage: Storage, other: Storage) -> None:
    hub, busy, idle = EventHub(storage, POLL_S), new_job(storage), new_job(storage)
    held = lease(other)
    assert held.job.id == busy

    async def run() -> list[bool]:
        ready = [threading.Event() for _ in range(3)]
        streams = [
            rings(hub, busy, ready[0], LONG_S),
            rings(hub, busy, ready[1], LONG_S, first=False),
            rings(hub, idle, ready[2], 1.5),
        ]

        def write() -> None:
            for each in ready:
                assert each.wait(LONG_S)
            other.append_events(held, [NewEvent("log", {})])

        writer = asyncio.get_running_loop().run_in_executor(None, write)
        woken = await asyncio.gather(*streams)
        await writer
        return woken

    assert asyncio.run(run()) == [True, True, False]


def test_while_nothing_is_committed_the_jobs_are_hardly_ever_read(storage: Storage) -> None:
    counting = Counting(storage)
    hub, job_id = EventHub(counting, POLL_S), new_job(storage)  # type: ignore[arg-type]

    asyncio.run(rings(hub, job_id, threading.Event(), 1.0))

    assert 1 <= counting.asked <= 4, "at first, and now and then to be certain"


def test_its_thread_ends_with_the_last_stream_and_begins_with_the_next(storage: Storage) -> None:
    hub, job_id = EventHub(storage, POLL_S), new_job(storage)
    for _ in range(2):
        asyncio.run(rings(hub, job_id, threading.Event(), 0.05))
        until = time.monotonic() + LONG_S
        while any(thread.name == "event-hub" for thread in threading.enumerate()):
            assert time.monotonic() < until, "the thread goes on without a stream"
            time.sleep(0.01)


def test_it_outlives_a_database_that_is_away(storage: Storage, other: Storage, database: Path) -> None:
    hub, job_id = EventHub(storage, POLL_S), new_job(storage)
    held = lease(other)

    async def run() -> bool:
        ready = threading.Event()
        stream = asyncio.ensure_future(rings(hub, job_id, ready, LONG_S))

        def write() -> None:
            assert ready.wait(LONG_S)
            with without_table(database, "jobs"):
                time.sleep(0.2)  # several looks at a database that cannot answer
            other.append_events(held, [NewEvent("log", {})])

        await asyncio.get_running_loop().run_in_executor(None, write)
        return await stream

    assert asyncio.run(run())


def test_all_streams_are_woken_when_the_service_ends(storage: Storage) -> None:
    hub, job_id = EventHub(storage, POLL_S), new_job(storage)

    async def run() -> bool:
        ready = threading.Event()
        stream = asyncio.ensure_future(rings(hub, job_id, ready, LONG_S))
        await asyncio.to_thread(ready.wait, LONG_S)
        hub.ring_all()
        return await stream

    assert asyncio.run(run())
