"""Limits of request bodies: they are read here, within a size and a time, before any route."""

from __future__ import annotations

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.paths import path_of
from service.problems import ProblemResponse, problem
from service.settings import Settings

STREAMED = frozenset({("POST", "/v1/records")})
"""Routes that read their bodies themselves, bounded in another way: no part of such a body is kept."""
ANONYMOUS = 16 * 1024
"""Bytes of a body that comes without a key, as the form to sign in with does."""


class BodyLimit:
    """Reads the whole body of a request, or answers 413 or 408 without reading the rest."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], path_of(scope)) in STREAMED:
            await self._app(scope, receive, send)
            return
        limit = self._settings.max_body_bytes if "api_key" in scope.get("state", {}) else ANONYMOUS
        body = await self._read(Headers(scope=scope).get("content-length"), receive, limit)
        if isinstance(body, bytes):
            await self._app(scope, _replayed(body, receive), send)
        elif body is not None:
            await self._refuse(body, scope, receive, send)

    async def _read(self, length: str | None, receive: Receive, limit: int) -> bytes | ProblemResponse | None:
        """The body; a problem if it is too large or too slow; None if the client has disconnected."""
        if length is not None and length.isdecimal() and int(length[:18]) > limit:
            return _too_large(limit)
        chunks = bytearray()
        with anyio.move_on_after(self._settings.body_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunks += message.get("body", b"")
                if len(chunks) > limit:
                    return _too_large(limit)
                if not message.get("more_body", False):
                    return bytes(chunks)
        detail = f"the body did not arrive within {self._settings.body_timeout_s:g} s; send it again"
        return problem(408, "body-too-slow", "The request took too long to arrive", detail)

    async def _refuse(self, response: ProblemResponse, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then discard what is still arriving: a client that is still sending may lose the answer of a closed
        connection."""
        response.headers["Connection"] = "close"

        async def hold_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await response(scope, receive, hold_open)
        with anyio.move_on_after(self._settings.linger_s):
            await self._discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _discard(self, receive: Receive) -> None:
        left = 16 * self._settings.max_body_bytes
        while left > 0:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return
            left -= len(message.get("body", b""))


def _too_large(limit: int) -> ProblemResponse:
    return problem(
        413,
        "body-too-large",
        "The request is too large",
        f"the body is larger than {limit} bytes; split the job, or leave instances to the default",
        max_bytes=limit,
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns the body once, and then whatever ``receive`` returns: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
