"""The HTTP connection of a client: which proxy it goes through, which certificates it trusts, how much it reads.

What the environment says of proxies and certificates is looked at only where it matters: a service on this machine
needs no proxy, and one without TLS no certificates.
"""

from __future__ import annotations

import ipaddress
import json
import os
import queue
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx

from shapewright.errors import BadEnvironment, ServiceError

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
MAX_ANSWER = 64 << 20
"""Bytes of an answer in JSON; lists come in pages of some kB."""
MAX_PROBLEM = 1 << 20
"""Bytes of an answer that says what is wrong."""
PATIENCE_S, SLOWEST_BYTES_S = 60.0, 32 << 10
"""The time that an answer may take, and the bytes for each of which it may take a second more."""


Transport = TypeVar("Transport", bound="_Patient | _PatientAsync")


def open_http(url: str, headers: dict[str, str]) -> httpx.Client:
    """Raises httpx.InvalidURL, BadEnvironment on the variable that is wrong."""
    base, transport = _transport(url, _Patient)
    return httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT, trust_env=False, transport=transport)


def open_async_http(url: str, headers: dict[str, str]) -> httpx.AsyncClient:
    """Raises as ``open_http`` does."""
    base, transport = _transport(url, _PatientAsync)
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT, trust_env=False, transport=transport)


def _transport(url: str, kind: Callable[..., Transport]) -> tuple[httpx.URL, Transport]:
    base = _address(url)
    variable, proxy = _proxy_of(base)
    try:
        trusted = _trusted() if base.scheme == "https" else _none_trusted()
        return base, kind(verify=trusted, trust_env=False, proxy=proxy)
    except ImportError:
        problem = "names a SOCKS proxy, and the package for these is not installed"
        raise BadEnvironment(variable, problem, f"pip install 'httpx[socks]', or {_without(variable, base)}") from None


class _Patient(httpx.HTTPTransport):
    """Waits PATIENCE_S for the head of an answer in all. The time limits of httpx are for single reads: a head that
    drips, or a service that says `100 Continue` for ever, would pass them."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        # What is sent in pieces may take its time.
        if "transfer-encoding" in request.headers:
            return super().handle_request(request)
        outcome: queue.SimpleQueue[httpx.Response | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._answer, args=(request, outcome), daemon=True).start()
        try:
            found = outcome.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no answer within {PATIENCE_S:g} s", request=request) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _answer(self, request: httpx.Request, outcome: queue.SimpleQueue[httpx.Response | BaseException]) -> None:
        try:
            outcome.put(super().handle_request(request))
        except BaseException as error:  # raised again by who waits
            outcome.put(error)


class _PatientAsync(httpx.AsyncHTTPTransport):
    """Waits PATIENCE_S for the head of an answer in all, as ``_Patient`` does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if "transfer-encoding" in request.headers:
            return await super().handle_async_request(request)
        try:
            with anyio.fail_after(PATIENCE_S):
                return await super().handle_async_request(request)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no answer within {PATIENCE_S:g} s", request=request) from None


def _address(text: str) -> httpx.URL:
    url = httpx.URL(text)
    if url.port is not None and not 0 < url.port < 65536:
        raise httpx.InvalidURL(f"there is no port {url.port}")
    try:
        # As it is read and looked up later: of what cannot be, that would be no error of httpx.
        url.host.encode("idna")
    except UnicodeError:
        raise httpx.InvalidURL(f"{url.raw_host.decode()!r} is not the name of a host") from None
    return url


def _proxy_of(url: httpx.URL) -> tuple[str, httpx.Proxy | None]:
    """The proxy of the environment, and the variable that names it."""
    names = [f"{url.scheme}_proxy", "all_proxy"]
    for name in (each for lower in names for each in (lower, lower.upper())):
        text = os.environ.get(name, "").strip()
        if not text or is_near(url.host) or _is_excepted(url):
            continue
        try:
            proxy = httpx.Proxy(_address(text if "://" in text else f"http://{text}"))
            if proxy.url.scheme == "https":
                proxy.ssl_context = _trusted()
            return name, proxy
        except (ValueError, httpx.InvalidURL):
            problem = "is not the URL of a proxy"
            raise BadEnvironment(name, problem, f"as in http://proxy:3128, or {_without(name, url)}") from None
    return "", None


def _without(variable: str, url: httpx.URL) -> str:
    return f"unset {variable}, or set NO_PROXY={url.host}"


def is_near(host: str) -> bool:
    """Whether a host, by its name or its address, is this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".").endswith("localhost")
    return address.is_loopback or address.is_unspecified


def _is_excepted(url: httpx.URL) -> bool:
    """Whether NO_PROXY names the host: by name, domain, address or network, with or without a port."""
    entries = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return any(_excepts(entry.strip().lower().rpartition("://")[2], url.host.lower(), port) for entry in entries)


def _excepts(entry: str, host: str, port: int | None) -> bool:
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (name.endswith("]") or ":" not in name):
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]").lstrip("*").lstrip(".") if entry != "*" else entry
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return entry == "*" or (bool(entry) and (host == entry or host.endswith(f".{entry}")))


def _trusted() -> ssl.SSLContext:
    """The certificates that SSL_CERT_FILE or SSL_CERT_DIR names, or else those that come with this package."""
    for variable, keyword in (("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")):
        place = os.environ.get(variable)
        if not place:
            continue
        problem = f"{place!r} does not exist"
        if Path(place).exists():
            try:
                return _context(**{keyword: place})
            except OSError as error:
                problem = f"{place!r} holds no certificates that can be read ({error})"
        raise BadEnvironment(variable, problem, f"unset {variable}, or name certificates in PEM")
    import certifi  # noqa: PLC0415 - for TLS alone

    return _context(cafile=certifi.where())


def _context(**places: str) -> ssl.SSLContext:
    """A context that trusts these. ``ssl.create_default_context`` would open SSLKEYLOGFILE, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(**places)
    if "capath" in places and not any(Path(places["capath"]).iterdir()):
        raise OSError("it is empty")
    return context


def _none_trusted() -> ssl.SSLContext:
    """A context that trusts nobody, for a connection without TLS; redirects are not followed."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


EARLIER = {"cache": "warm"}
"""What a service of an earlier release does not say, because it knows nothing else."""


class Fields(dict[str, Any]):
    """An object of an answer. A field that it lacks is the service's fault, not a defect here."""

    def __missing__(self, name: str) -> Any:
        if name in EARLIER:
            return EARLIER[name]
        raise ServiceError(f"the answer has no {name!r}; is this URL a Shapewright service?")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The objects that a field lists. Raises ServiceError."""
        rows = self[name]
        if not isinstance(rows, list) or not all(isinstance(row, Fields) for row in rows):
            raise ServiceError(f"{name!r} of the answer lists no objects; is this URL a Shapewright service?")
        return rows


def read_json(content: bytes, url: str) -> Fields:
    """The object that an answer is. Raises ServiceError."""
    try:
        document = json.loads(content, object_hook=Fields)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, Fields):
        raise ServiceError(f"{url} did not answer in JSON; is this URL a Shapewright service?")
    return document


def read_whole(response: httpx.Response, most: int, clock: Callable[[], float]) -> httpx.Response:
    """The answer with its content, which has ``most`` bytes at most. Raises ServiceError, httpx.HTTPError."""
    coming = _Coming(response, most, clock)
    for piece in response.iter_bytes():
        coming.add(piece)
    return coming.whole()


async def read_whole_async(response: httpx.Response, most: int, clock: Callable[[], float]) -> httpx.Response:
    """``read_whole`` of an answer that is awaited."""
    coming = _Coming(response, most, clock)
    async for piece in response.aiter_bytes():
        coming.add(piece)
    return coming.whole()


class _Coming:
    """An answer as it comes. ``add`` raises ServiceError once it is too large or too slow."""

    def __init__(self, response: httpx.Response, most: int, clock: Callable[[], float]) -> None:
        self._response, self._clock = response, clock
        self._most = most if response.is_success else MAX_PROBLEM
        self._content, self._began_s = bytearray(), clock()

    def add(self, piece: bytes) -> None:
        self._content += piece
        url, size = self._response.url, len(self._content)
        if size > self._most:
            raise ServiceError(f"{url} answers with more than {self._most} bytes; is it a Shapewright service?")
        if self._clock() - self._began_s > PATIENCE_S + size / SLOWEST_BYTES_S:
            raise ServiceError(f"{url} takes too long for its answer ({size} bytes); try again later")

    def whole(self) -> httpx.Response:
        coded = ("content-encoding", "content-length", "transfer-encoding")
        response = self._response
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in coded]
        return httpx.Response(
            response.status_code, headers=headers, content=bytes(self._content), request=response.request
        )
