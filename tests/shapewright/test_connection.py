"""What the environment says of proxies and certificates, and answers that are not as a service's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shapewright.client import Client, ServiceError, ServiceUnreachable
from shapewright.connection import MAX_PROBLEM, open_http
from shapewright.errors import BadEnvironment
from shapewright.sources.opening import source_of
from shapewright.sources.source import SourceAway
from shapewright.sse import Frames
from tests.shapewright.answering import answering
from tuner.program.job.build import make_workload

FAR = "http://shapewright.example:8321"
VARIABLES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
ODD = {
    "ALL_PROXY": ("socks5://127.0.0.1:1", "", "   ", "http://[", "http://a:b:c:d"),
    "HTTP_PROXY": ("foo://bar", "127.0.0.1:1", "http://proxy:99999"),
    "HTTPS_PROXY": ("foo://bar",),
    "NO_PROXY": ("localhost,[::1]", "[::1]:80,fe80::/10,*", ",,", "10.0.0.0/8", "[", "http://["),
    "SSL_CERT_FILE": ("/gone", "/", "/dev/null", ""),
    "SSL_CERT_DIR": ("/gone", "/dev/null", ""),
    "SSLKEYLOGFILE": ("/gone/keys",),
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_a_service_on_this_machine_needs_nothing_of_the_environment(
    name: str, value: str, lower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name.lower() if lower and "PROXY" in name else name, value)
    with answering(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"items": []}') as url, Client(url) as client:
        assert client.devices() == []
    for host in ("localhost", "[::1]", "sub.localhost", "0.0.0.0"):
        open_http(f"http://{host}:1", {}).close()


@pytest.mark.parametrize(
    ("name", "value", "url"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", FAR),
        ("all_proxy", "socks5h://127.0.0.1:1", "https://shapewright.example"),
        ("HTTP_PROXY", "foo://bar", FAR),
        ("HTTPS_PROXY", "foo://bar", "https://shapewright.example"),
        ("http_proxy", "http://proxy:99999", FAR),
        ("SSL_CERT_FILE", "/gone", "https://shapewright.example"),
        ("SSL_CERT_FILE", "/dev/null", "https://shapewright.example"),
        ("SSL_CERT_DIR", "/gone", "https://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy_and_is_away_for_a_build(
    name: str, value: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadEnvironment, match=rf"^{name}: .*unset {name}"):
        Client(url, key="k")
    with pytest.raises(SourceAway, match=name):
        source_of(url).find(make_workload("dense", {"m": "T", "n": 5, "k": 3}), 1)


@pytest.mark.parametrize(
    "entries",
    ["*", "example", ".example", "*.example", "shapewright.example:8321", "a, SHAPEWRIGHT.example", "http://example"],
)
def test_no_proxy_excepts_hosts(entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://bar")
    monkeypatch.setenv("NO_PROXY", entries)
    open_http(FAR, {}).close()


@pytest.mark.parametrize("entries", ["", "shapewright.example:80", "wright.example", "10.0.0.0/8,[::1]"])
def test_no_proxy_excepts_no_other_hosts(entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://bar")
    monkeypatch.setenv("NO_PROXY", entries)
    with pytest.raises(BadEnvironment):
        open_http(FAR, {})


@pytest.mark.parametrize(
    ("entry", "host"), [("10.0.0.0/8", "10.1.2.3"), ("[fd00::1]:80", "[fd00::1]"), ("fd00::/8", "[fd00::1]")]
)
def test_no_proxy_excepts_networks(entry: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://bar")
    monkeypatch.setenv("NO_PROXY", entry)
    open_http(f"http://{host}", {}).close()


def test_a_proxy_is_used_for_what_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"items": []}') as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.removeprefix("http://"))
        with Client(FAR, key="k") as client:
            assert client.devices() == []


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
ANSWERS: dict[str, bytes | Callable[[], Iterator[bytes]]] = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"items": [',
    "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
    "a list": HEAD + b"[]",
    "a number": HEAD + b"1",
    "other fields": HEAD + b'{"devices": []}',
    "nested": HEAD + b'{"items":' + b"[" * 200_000,
    "no text": HEAD + b"\xff\xfe\x00",
    "packed wrong": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnot gzip",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    "a broken server": b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 100,
    "an endless body": lambda: iter([HEAD, *([b" " * (1 << 20)] * 80)]),
    "an endless problem": lambda: iter([b"HTTP/1.1 400 No\r\n\r\n", *([b" " * MAX_PROBLEM] * 3)]),
    "an endless head": lambda: iter([b"HTTP/1.1 200 OK\r\n", *([b"X-A: " + b"a" * 999 + b"\r\n"] * 10_000)]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_no_services_is_an_error_of_the_service(name: str) -> None:
    with answering(ANSWERS[name]) as url, Client(url) as client, pytest.raises(ServiceError):
        client.devices()


def test_an_answer_that_drips_is_given_up() -> None:
    """However slowly time passes here: the clock of the client is an hour further at each look."""
    hours = iter(range(0, 10**6, 3600))
    with (
        answering(lambda: iter([HEAD, *([b" "] * 100)])) as url,
        Client(url, clock=lambda: float(next(hours))) as client,
        pytest.raises(ServiceError, match="too long"),
    ):
        client.devices()


@pytest.mark.parametrize("piece", [b"HTTP/1.1 100 Continue\r\n\r\n", b""])
def test_a_head_that_never_comes_is_given_up(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapewright.connection.PATIENCE_S", 0.2)
    ended = threading.Event()

    def endless() -> Iterator[bytes]:
        while not ended.wait(0.001):
            yield piece

    with answering(endless) as url, Client(url) as client:
        with pytest.raises(ServiceUnreachable, match=r"no answer within 0\.2 s"):
            client.devices()
        ended.set()


def test_a_stream_without_an_end_of_line_is_given_up() -> None:
    frames = Frames(most=10)
    with pytest.raises(ServiceError, match="a line of more than 10 bytes"):
        for piece in (b"data: 1\n", b"x" * 8, b"x" * 8):
            list(frames.feed(piece))


@pytest.mark.parametrize("data", [b"data: {", b"data: []", b'data: {"kind": 1}', b"data: " + b"[" * 100_000])
def test_an_event_that_is_none_is_an_error_of_the_service(data: bytes) -> None:
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + data + b"\n\n"
    with answering(stream) as url, Client(url) as client, pytest.raises(ServiceError):
        list(client.events("job-1", retry_s=0.0))


@pytest.mark.parametrize("kind", ["unreadable", "a folder", "no text"])
def test_a_key_file_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "client.key"
    if kind == "a folder":
        file.mkdir()
    else:
        file.write_bytes(b"\xff" if kind == "no text" else b"k" * 70_000)
    with pytest.raises(BadEnvironment, match=r"client\.key: the key in it cannot be read"):
        Client(FAR, data_dir=tmp_path)
