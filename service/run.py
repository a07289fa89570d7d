"""Running the service: it listens on a port until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.app import DEFAULTS, create_app
from service.dependencies import EventStreams
from service.heads import BoundedProtocol, Waiting
from service.housekeeping import keep_house
from service.paths import parse_prefix
from service.settings import Settings
from service.webhooks.sender import Sender
from tuner.errors import ShapewrightError
from tuner.storage.sql import Storage, open_storage

BACKLOG = 2048
KEEP_ALIVE_S = 15

COLLECT_AFTER = 20_000
"""Allocations less deallocations before a collection of the youngest generation; Python's default is 700."""

_log = logging.getLogger(__name__)


class PortInUse(ShapewrightError):
    """The address is in use, or not permitted."""


def serve(
    storage_url: str,
    host: str = "127.0.0.1",
    port: int = 8321,
    *,
    settings: Settings = DEFAULTS,
    root_path: str = "",
    shutdown_s: float = 5.0,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGINT or SIGTERM; returns within about ``shutdown_s`` seconds of it, open event streams or not.

    ``on_ready`` is called with the service's URL once it accepts connections. Port 0 takes any free one.
    ``root_path`` is the prefix that a proxy in front puts the service under. Raises InvalidInput on that, and
    PortInUse, before anything is started.
    """
    prefix = parse_prefix(root_path)
    raise_file_limit()
    listener = bind(host, port)
    try:
        storage = open_storage(storage_url)
        try:
            server = Server(create_app(storage, settings=settings, root_path=prefix), shutdown_s, on_ready)
            server.run(sockets=[listener])
        finally:
            storage.close()
    finally:
        listener.close()


def raise_file_limit() -> None:
    """Every event stream is an open file, and systems begin with a limit of some hundred."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bind(host: str, port: int, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """A socket that holds the address, so that no one can take it before the server listens. Raises PortInUse.

    ``shared``: other sockets of this user may listen there too, if all are bound so.
    """
    family, kind, protocol, _, address = _resolve(host, port)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
        if listen:
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUse(_refusal(host, port, error)) from None
    return listener


@contextmanager
def reserve(host: str, port: int) -> Iterator[int]:
    """Hold a port for sockets that share it; which one it is. Raises PortInUse if anyone listens there already."""
    # A socket that shares the port would be let in beside another service that does so too.
    bind(host, port).close()
    with bind(host, port, shared=True, listen=False) as held:
        yield held.getsockname()[1]


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    if not 0 <= port <= 65535:
        raise PortInUse(f"cannot listen at {host}:{port}: ports end at 65535; choose another with --port")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PortInUse(f"cannot listen at {host}:{port}: {error.strerror}; give a host of this machine") from None


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program; stop it, or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"port {port} is not allowed to this user; choose one from 1024 on with --port"
    return f"cannot listen at {host}:{port}: {error.strerror}; choose another host or port"


def _tune_garbage_collection() -> None:
    """Freeze what lives as long as the process, and collect less often.

    The caches of lookups hold millions of objects: every request waits for a full collection of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 50, 1000)


def behind_proxy(app: ASGIApp, trusted: str) -> ASGIApp:
    """What proxies at the ``trusted`` addresses say of clients counts. With none, ``X-Forwarded-Proto`` of this machine
    does, and nobody's ``X-Forwarded-For``: every program here could give itself an address."""
    if trusted:
        return cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), trusted))
    inner = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), "127.0.0.1"))

    async def anonymous(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [each for each in scope.get("headers", ()) if each[0] != b"x-forwarded-for"]
        await inner({**scope, "headers": headers}, receive, send)

    return anonymous


class Server(uvicorn.Server):
    """On a signal it ends open event streams first, and returns instead of re-raising the signal."""

    def __init__(self, app: FastAPI, shutdown_s: float, on_ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            behind_proxy(app, os.environ.get("FORWARDED_ALLOW_IPS", "")),
            proxy_headers=False,
            lifespan="off",
            http=partial(BoundedProtocol, waiting=Waiting()),  # type: ignore[arg-type]  # it is called as a class is
            ws="none",
            log_config=None,  # logging is the caller's: standard output may hold a document
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(shutdown_s)),
        )
        super().__init__(config)
        self._streams: EventStreams = app.state.event_streams
        self._sender = Sender(app.state.storage, private=app.state.settings.webhook_private)
        self._storage: Storage = app.state.storage
        self._background: list[asyncio.Task[None]] = []
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _tune_garbage_collection()
        work = (self._sender.run(), keep_house(self._storage))
        self._background = [asyncio.create_task(each) for each in work]
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            self._on_ready(url_of(host, port))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.info("stopping; %d event streams are open", self._streams.open)
        self._streams.close()
        for task in self._background:
            task.cancel()  # a message that is not confirmed is sent again later, by whoever runs then
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The base class would also raise the signal again once the server is down: the process would die of it
        # before its owner could close what it opened.
        self.force_exit = self.should_exit
        self.should_exit = True
