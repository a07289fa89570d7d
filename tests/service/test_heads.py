"""What arrives before anybody is known: heads without an end, slow ones, and many at once."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from service import heads
from tests.measuring import wait_for
from tests.serving import serving
from tuner.storage.sql import Storage

MUCH = 20 * 2**20


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage) as result:
        yield result


def connected(url: str) -> socket.socket:
    parsed = httpx.URL(url)
    result = socket.create_connection((parsed.host, parsed.port or 80), timeout=30)
    result.settimeout(30)
    return result


def status_of(client: socket.socket) -> int | None:
    """Of the answer; None if the connection was closed without one."""
    try:
        first = client.recv(65536)
    except ConnectionResetError:
        return None
    return int(first.split()[1]) if first else None


def sent(url: str, begin: bytes, piece: bytes) -> tuple[int, int | None]:
    """How much of an endless head was taken, and the answer."""
    with connected(url) as client:
        count = 0
        try:
            client.sendall(begin)
            while count < MUCH:
                client.sendall(piece)
                count += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            return count, status_of(client) if count == 0 else None
        return count, status_of(client)


GET = b"GET /healthz HTTP/1.1\r\nHost: h\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        pytest.param(GET, b"a: b\r\n" * 500, id="lines"),
        pytest.param(GET + b"a: ", b"b" * 5000, id="a value"),
        pytest.param(GET, b"a" * 5000, id="a name"),
        pytest.param(b"GET /", b"b" * 5000, id="a URL"),
        pytest.param(CHUNKED, b"a: b\r\n" * 500, id="trailers"),
        pytest.param(CHUNKED + b"a: ", b"b" * 5000, id="a trailer's value"),
        pytest.param(GET + b"\r\n", GET + b"\r\n" * 100, id="requests that nobody reads the answers of"),
    ],
)
def test_an_endless_head_is_cut_off(url: str, begin: bytes, piece: bytes) -> None:
    count, _ = sent(url, begin, piece)
    assert count < MUCH
    assert httpx.get(f"{url}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(GET + b"a: b\r\n" * (heads.MAX_LINES + 1), 431, id="lines"),
        pytest.param(GET + b"a: " + b"b" * (heads.MAX_HEAD + 2 * heads.STEP), 431, id="a value"),
        pytest.param(b"GET /" + b"b" * (heads.MAX_HEAD + 2 * heads.STEP), 414, id="a URL"),
        pytest.param(b"nonsense\r\n\r\n", 400, id="no HTTP"),
    ],
)
def test_the_answer_says_what_is_too_large(url: str, head: bytes, status: int) -> None:
    with connected(url) as client:
        client.sendall(head)
        lines, _, body = client.recv(65536).partition(b"\r\n\r\n")
    first, *rest = lines.decode().splitlines()
    told = dict(line.split(": ", 1) for line in rest)
    assert int(first.split()[1]) == json.loads(body)["status"] == status
    assert told["content-type"] == "application/problem+json"
    assert int(told["content-length"]) == len(body)
    assert told["x-request-id"].isalnum()


def test_a_head_that_is_large_and_within_the_limits_is_answered(url: str) -> None:
    large = {f"x-{number}": "b" * 250 for number in range(100)}
    with httpx.Client() as client:
        assert [client.get(f"{url}/healthz", headers=large).status_code for _ in range(3)] == [200] * 3
        assert client.get(f"{url}/healthz?{'a' * 20_000}").status_code == 200


def test_requests_that_come_together_are_answered_in_order(url: str) -> None:
    with connected(url) as client:
        client.sendall((GET + b"\r\n") * 9 + GET + b"Connection: close\r\n\r\n")
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200") == 10


def test_a_slow_head_is_given_up_and_an_idle_connection_closed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads.BoundedProtocol.__init__, "__kwdefaults__", {"head_s": 0.3})
    with serving(storage) as url, connected(url) as slow, connected(url) as silent, connected(url) as answered:
        slow.sendall(GET)
        answered.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
        assert status_of(slow) == 408
        assert status_of(silent) is None
        assert status_of(answered) == 401


def drip(client: socket.socket, piece: bytes) -> bool:
    """Whether the connection is closed by now."""
    try:
        client.sendall(piece)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("piece", [b"a: b\r\n", b"\r\n"], ids=["a line", "an empty line"])
def test_a_head_that_comes_drop_by_drop_is_given_up(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(heads.BoundedProtocol.__init__, "__kwdefaults__", {"head_s": 0.3})
    with serving(storage) as url, connected(url) as client:
        if piece.strip():
            client.sendall(GET)
        wait_for(lambda: drip(client, piece), 30)


def test_a_body_that_was_answered_is_not_read_for_ever(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads.BoundedProtocol.__init__, "__kwdefaults__", {"head_s": 0.3})
    with serving(storage) as url, connected(url) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert status_of(client) == 401
        wait_for(lambda: drip(client, b"1\r\na\r\n"), 30)


def test_the_oldest_of_too_many_heads_go(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads.Waiting.__init__, "__defaults__", (20, heads.MAX_BYTES))
    with serving(storage) as url:
        clients = [connected(url) for _ in range(50)]
        for client in clients:
            client.sendall(GET)
        assert status_of(clients[0]) is None
        assert httpx.get(f"{url}/healthz").status_code == 200
        clients[-1].sendall(b"\r\n")
        assert status_of(clients[-1]) == 200
        for client in clients:
            client.close()


def test_heads_are_bounded_together(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads.Waiting.__init__, "__defaults__", (heads.MAX_WAITING, 100_000))
    with serving(storage) as url:
        clients = [connected(url) for _ in range(8)]
        for client in clients:
            client.sendall(GET + b"a: " + b"b" * 20_000)
        assert status_of(clients[0]) is None
        clients[-1].sendall(b"\r\n\r\n")
        assert status_of(clients[-1]) == 200
        for client in clients:
            client.close()


def test_a_body_without_a_key_is_small(url: str) -> None:
    answer = httpx.post(f"{url}/login", content=b"key=" + b"a" * 100_000)
    assert answer.status_code in (403, 413)
    with connected(url) as client:
        client.sendall(b"POST /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n")
        assert status_of(client) == 413


# -- floods ---------------------------------------------------------------------------------------------------------
PROGRAM = """
import sys
from service.run import serve
serve(sys.argv[1], port=0, on_ready=lambda url: print(url, flush=True))
"""
FLOOD = (GET + b"a: " + b"b" * 12_000, GET + b"a: b\r\n" * 60, b"GET /" + b"b" * 12_000)


@contextmanager
def process(database: Path) -> Iterator[tuple[str, int]]:
    """A service in a process of its own: its URL and its number."""
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{database}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip(), running.pid
        finally:
            running.terminate()


def resident(pid: int) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def flood(url: str, until: threading.Event) -> None:
    """Endless heads, one after the other."""
    while not until.is_set():
        for begin, piece in ((GET, b"a: b\r\n" * 500), (GET + b"a: ", b"b" * 5000), (b"GET /", b"b" * 5000)):
            sent(url, begin, piece)


def slowest_s(url: str, count: int) -> float:
    def once() -> float:
        begun = time.monotonic()
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        return time.monotonic() - begun

    return max(once() for _ in range(count))


def test_open_heads_take_little_memory(storage: Storage, database: Path) -> None:
    with process(database) as (url, pid), ExitStack() as stack:
        slowest_s(url, 3)
        idle = resident(pid)
        for number in range(900):
            stack.enter_context(connected(url)).sendall(FLOOD[number % len(FLOOD)])
        slowest_s(url, 3)
        assert resident(pid) - idle < 64 * 2**20


@pytest.mark.soak
def test_a_flood_of_heads_takes_little_memory_and_keeps_nobody_waiting(storage: Storage, database: Path) -> None:
    with process(database) as (url, pid), ExitStack() as stack:
        slowest_s(url, 3)
        idle = resident(pid)
        stop = threading.Event()
        threads = [threading.Thread(target=flood, args=(url, stop), daemon=True) for _ in range(16)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3000):
                stack.enter_context(connected(url)).sendall(FLOOD[number % len(FLOOD)])
            slowest = slowest_s(url, 100)
            most = resident(pid) - idle
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        assert most < 64 * 2**20
        assert slowest < 1.0
