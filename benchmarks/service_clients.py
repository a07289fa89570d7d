"""Clients of the benchmark of the service, to be run in processes of their own.

Raw sockets with keep-alive: the usual HTTP clients of Python take longer for a request than the service does.
"""

from __future__ import annotations

import json
import random
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

TIMEOUT_S = 120.0
Address = tuple[str, int]


@dataclass(frozen=True)
class Service:
    """Where the service is, and a key for it."""

    address: Address
    key: str

    def request(self, path: str, body: bytes | None = None) -> bytes:
        """The bytes of a request: GET, or POST if there is a body."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body is not None else ""
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.key}\r\n{length}\r\n"
        return head.encode() + (body or b"")


@dataclass
class Samples:
    """Latencies in seconds of answers with status 200, how many there were of each status, and the wall time."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    elapsed_s: float = 0.0

    def add(self, status: int, latency_s: float) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.latencies_s.append(latency_s)

    def merge(self, other: Samples) -> None:
        self.latencies_s += other.latencies_s
        self.statuses += other.statuses
        self.elapsed_s = max(self.elapsed_s, other.elapsed_s)


class Connection:
    """One connection, opened again after it has broken. Answers must have a Content-Length."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; status 0 if there was none."""
        try:
            return self._ask(request)
        except OSError:
            self.close()
            return 0, b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            self._receive(received)
        head = bytes(received[:end]).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        while len(received) < end + 4 + length:
            self._receive(received)
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), bytes(received[end + 4 :])

    def _receive(self, into: bytearray) -> None:
        assert self._socket is not None
        if not (chunk := self._socket.recv(1 << 18)):
            raise ConnectionResetError("the service closed the connection")
        into += chunk


def ask(service: Service, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = Connection(service.address)
    try:
        return connection.ask(service.request(path, body))
    finally:
        connection.close()


def open_loop(service: Service, requests: Sequence[bytes], rate_per_s: float, seconds: float, threads: int) -> Samples:
    """Requests at fixed times, however slow the answers are; latencies count from the time when each was due."""
    count = max(1, int(rate_per_s * seconds))
    numbers, lock, begun = iter(range(count)), threading.Lock(), time.monotonic() + 0.1

    def run(samples: Samples) -> None:
        connection = Connection(service.address)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return connection.close()
            due = begun + number / rate_per_s
            time.sleep(max(0.0, due - time.monotonic()))
            status, _ = connection.ask(requests[number % len(requests)])
            samples.add(status, time.monotonic() - due)

    return _in_threads(run, threads)


def closed_loop(service: Service, requests: Sequence[bytes], seconds: float, threads: int) -> Samples:
    """Each thread sends the next request once it has the answer to the one before."""
    until = time.monotonic() + seconds

    def run(samples: Samples) -> None:
        connection, draw = Connection(service.address), random.Random(threading.get_ident())
        while (sent := time.monotonic()) < until:
            status, _ = connection.ask(draw.choice(requests))
            samples.add(status, time.monotonic() - sent)
        connection.close()

    return _in_threads(run, threads)


def _in_threads(run: Callable[[Samples], None], threads: int) -> Samples:
    parts, started = [Samples() for _ in range(threads)], time.monotonic()
    running = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    whole = Samples()
    for part in parts:
        whole.merge(part)
    whole.elapsed_s = time.monotonic() - started
    return whole


# -- event streams ----------------------------------------------------------------------------------------------------
def hold_streams(service: Service, job_ids: Sequence[str], told: Pipe) -> None:
    """Keep an event stream of each job open, and read what it says, until ``told`` has something.

    Sends the number of streams once each has been answered.
    """
    raise_file_limit()
    selector = selectors.DefaultSelector()
    # One after the other: a thousand at once would wait for one another.
    for job_id in job_ids:
        stream = socket.create_connection(service.address, TIMEOUT_S)
        stream.sendall(service.request(f"/v1/jobs/{job_id}/events"))
        if not stream.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"no event stream of job {job_id}")
        selector.register(stream, selectors.EVENT_READ)
    told.send(len(job_ids))
    while not told.poll():
        for each, _ in selector.select(0.2):
            if isinstance(each.fileobj, socket.socket) and not each.fileobj.recv(1 << 16):
                selector.unregister(each.fileobj)
    for each in list(selector.get_map().values()):
        if isinstance(each.fileobj, socket.socket):
            each.fileobj.close()


def listen(service: Service, job_id: str, count: int, told: Pipe) -> dict[int, float]:
    """When each of ``count`` numbered events arrived, by the machine's monotonic clock. Says when it listens."""
    stream = socket.create_connection(service.address, TIMEOUT_S)
    stream.sendall(service.request(f"/v1/jobs/{job_id}/events"))
    arrived: dict[int, float] = {}
    rest = stream.recv(1 << 16)
    told.send(True)
    while len(arrived) < count:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and "index" in (data := json.loads(line[6:])["data"]):
                arrived[data["index"]] = time.monotonic()
        if len(arrived) < count:
            if not (chunk := stream.recv(1 << 16)):
                break
            rest += chunk
    stream.close()
    return arrived


def raise_file_limit() -> None:
    """A thousand streams are more open files than a process may have at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
