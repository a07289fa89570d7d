"""A storm of events: read once for all streams, kept within a bound, and who listens slowly holds nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from anyio import CapacityLimiter

from service.jobs import batches
from service.jobs.batches import BATCH, Batches
from service.settings import Settings
from tests.serving import JOB, lease, serving
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import JobEvent, JobState, NewEvent, StorageUnavailable
from tuner.storage.sql import Storage

TEXT = "x" * 2000


class Counting:
    """A job's events, and how often somebody has read them. ``pause_s``: what a read takes."""

    def __init__(self, count: int, pause_s: float = 0.01) -> None:
        self.events = [JobEvent("job-1", seq, "progress", {"text": TEXT}, "now") for seq in range(1, count + 1)]
        self.reads: list[int] = []
        self.pause_s = pause_s
        self.is_down = False

    def list_events(self, job_id: str, after: int, limit: int) -> tuple[JobEvent, ...]:
        self.reads.append(after)
        found = tuple(self.events[after : after + limit])
        time.sleep(self.pause_s)
        if self.is_down:
            raise StorageUnavailable("away")
        return found

    def get_job(self, job_id: str) -> Any:
        raise AssertionError("nobody may ask for the job")


async def followed(shared: Batches, storage: Any, until: int, pause_s: float = 0.0) -> int:
    """The bytes of a stream that sends all events up to one."""
    after, sent = 0, 0
    while after < until:
        batch = await shared.read(storage, "job-1", after, False)
        after, sent = batch.last, sent + len(batch.content)
        await asyncio.sleep(pause_s)
    return sent


def test_streams_at_the_same_place_share_what_is_read() -> None:
    storage = Counting(4 * BATCH + 7)

    async def storm() -> list[int]:
        shared = Batches(CapacityLimiter(4))
        return await asyncio.gather(
            *(followed(shared, storage, 4 * BATCH + 7, number % 3 / 1000) for number in range(50))
        )

    sent = asyncio.run(storm())
    assert len(set(sent)) == 1
    assert sorted(storage.reads)[:4] == [0, BATCH, 2 * BATCH, 3 * BATCH], "full ones are read once"
    assert len(storage.reads) < 4 + 50 / 2


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Counting(10 * BATCH, pause_s=0.0)
    monkeypatch.setattr(batches, "MAX_KEPT", 3 * BATCH * (len(TEXT) + 200))
    shared = Batches(CapacityLimiter(4))
    asyncio.run(followed(shared, storage, 10 * BATCH))
    assert 0 < sum(len(batch.content) for batch in shared._kept.values()) == shared._bytes <= batches.MAX_KEPT


def test_a_read_that_may_have_missed_a_commit_is_not_trusted_to_say_that_there_is_none() -> None:
    """The second stream was woken by an event that the first one's read is too early for."""
    storage = Counting(0, pause_s=0.1)

    async def both() -> tuple[bytes, bytes]:
        shared = Batches(CapacityLimiter(4))
        first = asyncio.create_task(shared.read(storage, "job-1", 0, False))  # type: ignore[arg-type]
        while not storage.reads:
            await asyncio.sleep(0.001)
        storage.events.append(JobEvent("job-1", 1, "progress", {}, "now"))
        second = await shared.read(storage, "job-1", 0, False)  # type: ignore[arg-type]
        return (await first).content, second.content

    early, late = asyncio.run(both())
    assert early == b"" and b"progress" in late


def test_a_client_that_leaves_takes_no_read_from_others_and_an_error_reaches_all() -> None:
    storage = Counting(3, pause_s=0.05)

    async def leaving() -> bytes:
        shared = Batches(CapacityLimiter(4))
        gone = asyncio.create_task(shared.read(storage, "job-1", 0, False))  # type: ignore[arg-type]
        stays = asyncio.create_task(shared.read(storage, "job-1", 0, False))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        gone.cancel()
        content = (await stays).content
        storage.is_down = True
        reads = [shared.read(storage, "job-1", 0, False) for _ in range(3)]  # type: ignore[arg-type]
        failed = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(each, StorageUnavailable) for each in failed)
        return content

    assert asyncio.run(leaving()).count(b"id: ") == 3
    assert len(storage.reads) == 2


def test_a_listener_that_reads_nothing_holds_nobody(storage: Storage, key: str) -> None:
    job_id = storage.create_job(parse_job(JOB).on(native()))[0].id
    held = lease(storage)
    with serving(storage, Settings(event_poll_s=0.02)) as url:
        where = urlsplit(url)
        assert where.hostname is not None and where.port is not None
        slow = [socket.create_connection((where.hostname, where.port)) for _ in range(4)]
        for connection in slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
            connection.sendall(line.encode())
        # Eight megabytes: more than the buffers between the service and a listener hold.
        for _ in range(4):
            storage.append_events(held, [NewEvent("log", {"message": TEXT})] * (2 * BATCH))
        storage.finish_job(held, JobState.COMPLETED)
        counts = list[int]()

        def listen() -> None:
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", headers=headers, timeout=20) as answer:
                data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
            counts.append(sum(each["kind"] == "log" for each in data))

        listeners = [threading.Thread(target=listen) for _ in range(2)]
        for each in listeners:
            each.start()
        for each in listeners:
            each.join(20)
        assert counts == [8 * BATCH] * 2
        for connection in slow:
            connection.close()
