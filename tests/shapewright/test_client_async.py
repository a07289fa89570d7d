"""The client that is awaited: every request of ``Client``, on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shapewright.client import Client, NotAllowed, ServiceNotFound, ServiceUnreachable
from shapewright.client_async import AsyncClient
from tests.serving import JOB, lease
from tests.shapewright.answering import answering
from tests.shapewright.cli_bed import Bed, complete
from tuner.storage import NewEvent


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_it_has_every_request_of_the_other_with_the_same_arguments() -> None:
    ours, others = methods(AsyncClient), methods(Client)
    assert set(ours) - {"aclose"} == set(others) - {"close"}
    for name in set(ours) & set(others):
        mine, its = inspect.signature(ours[name]), inspect.signature(others[name])
        assert mine.parameters == its.parameters
        assert str(mine.return_annotation).removeprefix("Async") == str(its.return_annotation)
        assert ours[name].__doc__ == others[name].__doc__


def test_jobs_are_submitted_followed_and_pulled(bed: Bed, tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncClient(bed.url) as client:
            made = await client.submit(JOB)
            held = lease(bed.storage)
            bed.storage.append_events(held, [NewEvent("log", {"message": "at work"})])
            digest = complete(bed.storage, held)
            events = [event async for event in client.events(made["id"])]
            assert [event["seq"] for event in events] == list(range(1, 8))
            assert events[-1]["data"]["state"] == "COMPLETED"
            one, jobs = await asyncio.gather(client.job(made["id"]), client.jobs())
            assert [one["state"], *(job["id"] for job in jobs)] == ["COMPLETED", made["id"]]
            manifest = await client.download_library(made["workload_keys"][0], tmp_path / "lib")
            assert manifest["digest"] == digest
            assert [trial async for trial in client.trials(made["id"])] == []

    asyncio.run(use())


def test_records_are_exported_and_imported(bed: Bed) -> None:
    async def use() -> None:
        async with AsyncClient(bed.url) as client:
            pieces = [piece async for piece in client.export_records()]
            assert await client.import_records(pieces) == {"added": 0, "known": 0}

    asyncio.run(use())


def test_errors_are_those_of_the_other(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"

    async def use() -> None:
        async with AsyncClient(bed.url) as client:
            with pytest.raises(ServiceNotFound):
                await client.job("job-none")
        async with AsyncClient(bed.url, "wrong") as client:
            with pytest.raises(NotAllowed):
                await client.jobs()
        async with AsyncClient(nobody, "k") as client:
            with pytest.raises(ServiceUnreachable):
                await client.jobs()

    asyncio.run(use())


def test_a_head_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapewright.connection.PATIENCE_S", 0.2)

    ended = threading.Event()

    def endless() -> Iterator[bytes]:
        while not ended.wait(0.01):
            yield b"HTTP/1.1 100 Continue\r\n\r\n"

    async def use(url: str) -> None:
        async with AsyncClient(url, "k") as client:
            with pytest.raises(ServiceUnreachable, match=r"no answer within 0\.2 s"):
                await client.devices()

    with answering(endless) as url:
        asyncio.run(use(url))
        ended.set()


def test_a_request_that_is_cancelled_ends_at_once(bed: Bed) -> None:
    """An idle stream says nothing for 15 s."""

    async def use() -> None:
        async with AsyncClient(bed.url) as client:
            made = await client.submit(JOB)
            first = asyncio.Event()

            async def follow() -> None:
                async for _ in client.events(made["id"]):
                    first.set()

            task = asyncio.create_task(follow())
            await asyncio.wait_for(first.wait(), 10)
            task.cancel()
            _, pending = await asyncio.wait([task], timeout=5)
            assert not pending
            assert task.cancelled()

    asyncio.run(use())
