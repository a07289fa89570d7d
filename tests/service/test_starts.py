"""Many streams and exports that begin at once: the others wait for a few of them at most."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.app import create_app
from service.dependencies import EXPORT_THREADS
from service.starts import PacedStarts
from tests.serving import JOB, serving
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage.sql import Storage


async def _nothing(*_: Any) -> Any:
    return {"type": "http.disconnect"}


class _App:
    """Begins to answer when it is told to, and then stays open."""

    def __init__(self) -> None:
        self.starting: list[asyncio.Event] = []
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/jobs":
            await send({"type": "http.response.start", "status": 200})
            return
        may_begin = asyncio.Event()
        self.starting.append(may_begin)
        await may_begin.wait()
        await send({"type": "http.response.start", "status": 200})
        self.open += 1
        await asyncio.Event().wait()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _opened_at_once() -> None:
    inner = _App()
    app = PacedStarts(inner, at_once=3)
    scope = {"type": "http", "path": "/v1/jobs/job-1/events", "method": "GET", "root_path": ""}
    streams = [asyncio.create_task(app(dict(scope), _nothing, _nothing)) for _ in range(50)]
    await _settled()
    assert len(inner.starting) == 3

    told: list[Message] = []

    async def send(message: Message) -> None:
        told.append(message)

    await app(scope | {"path": "/v1/jobs"}, _nothing, send)
    assert told, "another request waits for none of them"

    streams[-1].cancel()
    streams[0].cancel()  # one that ends before it has begun leaves its place
    await _settled()
    assert len(inner.starting) == 4
    while inner.open < 48:
        for each in inner.starting:
            each.set()
        await _settled()
    assert inner.open == 48, "those that have begun stay open beside each other"
    for task in streams:
        task.cancel()


def test_streams_that_are_opened_at_once_start_a_few_at_a_time() -> None:
    asyncio.run(_opened_at_once())


def test_exports_that_wait_keep_no_other_request_waiting(storage: Storage, key: str) -> None:
    app = create_app(storage)
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(app, headers=headers) as api:
        limiter = app.state.exports
        places = [object() for _ in range(EXPORT_THREADS)]
        assert api.portal is not None
        for place in places:
            api.portal.call(limiter.acquire_on_behalf_of_nowait, place)
        statuses: list[int] = []
        # More than the threads that requests share.
        waiting = [
            threading.Thread(target=lambda: statuses.append(api.get("/v1/records").status_code)) for _ in range(60)
        ]
        for thread in waiting:
            thread.start()
        assert api.get("/v1/jobs").status_code == 200
        assert statuses == []
        for place in places:
            api.portal.call(limiter.release_on_behalf_of, place)
        for thread in waiting:
            thread.join(60)
    assert statuses == [200] * 60


@pytest.mark.soak
@pytest.mark.parametrize(("path", "count"), [("jobs/{}/events", 3000), ("records", 200)], ids=["streams", "exports"])
def test_a_crowd_keeps_nobody_waiting_for_a_second(storage: Storage, key: str, path: str, count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    job, _ = storage.create_job(parse_job(JOB).on(native()))
    headers = f"Host: h\r\nAuthorization: Bearer {key}\r\n\r\n"
    asked = f"GET /v1/{path.format(job.id)} HTTP/1.1\r\n{headers}".encode()
    with serving(storage) as url, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}))
        client.get("/v1/jobs")

        async def crowd() -> None:
            address = httpx.URL(url)

            async def one() -> None:
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(asked)
                assert (await reader.read(12)).endswith(b"200")
                held.append(writer)

            held: list[asyncio.StreamWriter] = []
            await asyncio.gather(*(one() for _ in range(count)))
            for writer in held:
                writer.close()

        crowding = threading.Thread(target=lambda: asyncio.run(crowd()))
        crowding.start()
        slowest = 0.0
        while crowding.is_alive():
            begun = time.monotonic()
            assert client.get("/v1/jobs", timeout=60).status_code == 200
            slowest = max(slowest, time.monotonic() - begun)
        crowding.join()
    assert slowest < 1.0
