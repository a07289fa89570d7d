"""Clients of the benchmark of the service; its loops are run in processes of their own.

Plain sockets with keep-alive under uvloop: the usual HTTP clients of Python take longer for a request than the service
does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvloop

TIMEOUT_S = 120.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Service:
    address: tuple[str, int]
    key: str

    def request(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.key}\r\n\r\n".encode()


@dataclass
class Samples:
    """Latencies in seconds of answers with status 200, how many there were of each status, and the wall time."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    elapsed_s: float = 0.0


def load(
    service: Service, paths: Sequence[str], seconds: float, connections: int, rate_per_s: float | None = None
) -> Samples:
    """With a rate an open loop: requests at fixed times, however slow the answers are; latencies count from the time
    when each was due. Else a closed one: each connection sends the next request once it has the answer to the one
    before. A connection that breaks is opened again; a request without an answer has status 0."""

    async def together() -> Samples:
        samples, numbers, draw = Samples(), itertools.count(), random.Random(time.time_ns())
        begun = time.monotonic()

        async def run() -> None:
            streams: Streams | None = None
            while True:
                number = next(numbers)
                due = begun + number / rate_per_s if rate_per_s else time.monotonic()
                if due >= begun + seconds:
                    break
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        streams = streams or await asyncio.open_connection(*service.address)
                        path = paths[number % len(paths)] if rate_per_s else draw.choice(paths)
                        samples.statuses[status := await _ask(service, streams, path)] += 1
                    if status == 200:
                        samples.latencies_s.append(time.monotonic() - due)
                except (OSError, asyncio.IncompleteReadError, TimeoutError):
                    samples.statuses[0] += 1
                    if streams is not None:
                        streams[1].close()
                    streams = None
            if streams is not None:
                streams[1].close()

        await asyncio.gather(*(run() for _ in range(connections)))
        samples.elapsed_s = time.monotonic() - begun
        return samples

    return uvloop.run(together())


async def _ask(service: Service, streams: Streams, path: str) -> int:
    """The status of the answer, which is read whole, and must have a Content-Length."""
    reader, writer = streams
    writer.write(service.request(path))
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
    return int(head[9:12])


# -- event streams ----------------------------------------------------------------------------------------------------
async def stream(service: Service, job_id: str) -> Streams:
    """The events of a job; both ends: a writer that nobody holds is closed."""
    reader, writer = await asyncio.open_connection(*service.address)
    writer.write(service.request(f"/v1/jobs/{job_id}/events"))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"no event stream of job {job_id}")
    return reader, writer


@asynccontextmanager
async def idle_streams(service: Service, job_ids: Sequence[str]) -> AsyncIterator[None]:
    """An event stream of each job is open, and what it says is read, as long as the context is open."""
    # One after the other: a thousand at once would wait for one another.
    streams = [await stream(service, job_id) for job_id in job_ids]
    reading = [asyncio.create_task(reader.read()) for reader, _ in streams]
    yield
    for task, (_, writer) in zip(reading, streams, strict=True):
        task.cancel()
        writer.close()


async def arrivals(reader: asyncio.StreamReader, count: int) -> dict[int, float]:
    """When each of ``count`` numbered events arrived, by the machine's monotonic clock."""
    arrived = dict[int, float]()
    while len(arrived) < count and (line := await reader.readline()):
        if line.startswith(b"data: ") and "index" in (data := json.loads(line[6:])["data"]):
            arrived[data["index"]] = time.monotonic()
    return arrived
