"""The heads of requests, before anybody is known: bounded in size, in lines, in time and in number.

The server's own protocol keeps whatever arrives until a head is whole, for as long as its sender likes.
"""

from __future__ import annotations

import asyncio
import http
import secrets
from collections import OrderedDict
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from service.observing import HEADER
from service.problems import problem

MAX_HEAD = 32 * 1024
"""Bytes of a request line with its headers, or of a body's trailers."""
MAX_LINES = 128
HEAD_S = 10.0
"""The time within which a head must be whole, and the rest of a body that was answered already must have arrived."""
MAX_PIPELINED = 16
"""Requests that wait behind one of the same connection."""
MAX_WAITING, MAX_BYTES = 4096, 16 * 2**20
"""Heads of one process that are not whole, and their bytes together: beyond, the oldest are dropped."""
STEP = 4096
"""Bytes that are parsed between two looks at the limits."""


REFUSALS = {
    400: problem(400, "bad-request", "The request is not HTTP", "its head cannot be read; send another"),
    408: problem(408, "head-too-slow", "The request took too long", "its head was not whole in time; send it again"),
    414: problem(414, "address-too-long", "The request is too large", f"its address goes beyond {MAX_HEAD} bytes"),
    431: problem(
        431,
        "head-too-large",
        "The request is too large",
        f"its head goes beyond {MAX_HEAD} bytes or {MAX_LINES} lines; send fewer or shorter headers",
    ),
}
"""What is answered by status: nothing of the application has seen the request."""


class _Refused(Exception):
    """Ends the parsing of a request that was refused."""


class Waiting:
    """The connections of a process whose next head is not whole, the oldest first."""

    def __init__(self, most: int = MAX_WAITING, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._sizes: OrderedDict[BoundedProtocol, int] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, connection: BoundedProtocol, size: int) -> None:
        """Note that it waits, and has sent ``size`` bytes in all. Drops the oldest where they are too many together."""
        self._bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while len(self._sizes) > self._most or self._bytes > self._most_bytes:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            oldest.transport.abort()

    def remove(self, connection: BoundedProtocol) -> None:
        self._bytes -= self._sizes.pop(connection, 0)


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 or 414 to a head that is too large, and 408 to one that is too slow, and closes the connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        waiting: Waiting,
        head_s: float = HEAD_S,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._waiting = waiting
        self._head_s = head_s
        self._timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._begun = False
        # Bytes that no part of a body came of since the last head was whole, and lines of headers among them.
        self._size = 0
        self._lines = 0
        self._refusal: http.HTTPStatus | None = None

    # -- the connection -----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), STEP):
            piece = data[start : start + STEP]
            self._size += len(piece)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if self._refusal is not None or self._size > MAX_HEAD:
                self._refuse(self._refusal or self._too_large())
                return
        if self._begun or self.cycle is None or self.cycle.response_complete:
            self._await_head()

    def _await_head(self) -> None:
        """Wait no longer than the time for it, from its first byte or the connection's beginning on."""
        self._waiting.add(self, self._size)
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._head_s, self._too_slow)

    def _settle(self) -> None:
        """Nothing is waited for."""
        self._waiting.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what the parser finds ----------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._begun, self._in_body, self._lines = True, False, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            self._refusal = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        elif not self._in_body:  # trailers are nobody's
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refusal is not None or len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused
        self._settle()
        self._begun, self._in_body, self._size, self._lines = False, True, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._size = False, 0
        super().on_message_complete()

    # -- refusals -----------------------------------------------------------------------------------------------------
    def _too_large(self) -> http.HTTPStatus:
        is_line = not self._in_body and self._begun and not self.headers
        return http.HTTPStatus.REQUEST_URI_TOO_LONG if is_line else http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE

    def _too_slow(self) -> None:
        self._timer = None
        if self._begun:
            self._refuse(http.HTTPStatus.REQUEST_TIMEOUT)
        elif not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, and what was refused while it was."""
        self._refuse(self._refusal or http.HTTPStatus.BAD_REQUEST)

    def _refuse(self, status: http.HTTPStatus) -> None:
        self._settle()
        if self.cycle is not None and not self.cycle.response_complete:
            # An answer to an earlier request is under way: nothing may be written into it.
            self.transport.abort()
            return
        answer = REFUSALS[status]
        own = ((HEADER.lower().encode(), secrets.token_hex(8).encode()), (b"connection", b"close"))
        lines = b"".join(b"%s: %s\r\n" % each for each in (*answer.raw_headers, *own))
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()
