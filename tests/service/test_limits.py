"""Bodies that are too large or too slow, over a real connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from service.settings import Settings
from tests.serving import JOB, assert_problem, serving
from tuner.storage.sql import Storage

MIB = 1 << 20


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage, Settings(body_timeout_s=0.5, linger_s=1.0)) as url:
        yield url


@pytest.fixture
def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


@pytest.mark.parametrize("chunked", [False, True])
def test_fifty_megabytes_are_refused(url: str, headers: dict[str, str], chunked: bool) -> None:
    chunks = (b"x" * MIB for _ in range(50))
    answer = httpx.post(f"{url}/v1/jobs", content=chunks if chunked else b"".join(chunks), headers=headers)
    assert_problem(answer, 413)
    assert answer.json()["max_bytes"] == 1_000_000


def test_the_length_alone_is_enough_to_refuse(url: str, headers: dict[str, str]) -> None:
    with _connection(url) as connection:
        connection.sendall(_head(headers, "Content-Length: 50000000"))
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_is_cut_off(url: str, headers: dict[str, str]) -> None:
    """No length given, never ending: the service answers and closes, whatever the sender goes on sending."""
    chunk = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
    with _connection(url) as connection:
        connection.sendall(_head(headers, "Transfer-Encoding: chunked"))
        with pytest.raises(OSError):
            for _ in range(1000):
                connection.sendall(chunk)


def test_a_body_that_does_not_come_is_given_up(url: str, headers: dict[str, str]) -> None:
    with _connection(url) as connection:
        connection.sendall(_head(headers, "Content-Length: 100") + b"{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_sender_who_leaves_harms_nobody(url: str, headers: dict[str, str]) -> None:
    with _connection(url) as connection:
        connection.sendall(_head(headers, "Content-Length: 100") + b"{")
    assert httpx.get(f"{url}/v1/jobs", headers=headers).json()["items"] == []


def test_a_stranger_cannot_make_the_service_read(url: str) -> None:
    assert_problem(httpx.post(f"{url}/v1/jobs", content=b"x" * 100), 401)


def test_a_body_of_the_allowed_size_is_read(url: str, headers: dict[str, str]) -> None:
    body = json.dumps(JOB).encode()
    answer = httpx.post(f"{url}/v1/jobs", content=body.ljust(1_000_000), headers=headers)
    assert answer.status_code == 201
    assert httpx.post(f"{url}/v1/jobs", content=body.ljust(1_000_001), headers=headers).status_code == 413


def _connection(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20)


def _head(headers: dict[str, str], *lines: str) -> bytes:
    named = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(["POST /v1/jobs HTTP/1.1", "Host: test", *named, *lines, "", ""]).encode()
