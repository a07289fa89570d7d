"""Answers that a client has already: every JSON answer to a GET under /v1 has an ETag, and is not sent twice."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.paths import path_of

KEPT = frozenset({b"etag", b"cache-control", b"vary", b"content-location", b"expires"})
"""Headers that a 304 repeats."""


class Conditional:
    """Adds an ETag, the digest of the answer, where a route set none; answers 304 if the client names it.

    Weak, because the same answer may be sent compressed or not. What is cached must be asked for again each time.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not path_of(scope).startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "")
        held: Message | None = None

        async def conditional_send(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and _is_json(message):
                held = message
                return
            if held is not None:
                start, held = held, None
                if not message.get("more_body", False):
                    start, message = _conditional(start, message, known)
                await send(start)
            await send(message)

        await self._app(scope, receive, conditional_send)


def matches(known: str, etag: str) -> bool:
    """Whether ``known``, an If-None-Match, names this ETag. Weak and strong ones of the same text are the same."""
    named = {each.strip().removeprefix("W/") for each in known.split(",")}
    return etag.removeprefix("W/") in named or named == {"*"}


def _is_json(message: Message) -> bool:
    media_type = Headers(raw=message["headers"]).get("content-type", "")
    return bool(message["status"] == 200) and media_type.startswith("application/json")


def _conditional(start: Message, body: Message, known: str) -> tuple[Message, Message]:
    headers = MutableHeaders(raw=list(start["headers"]))
    if "etag" not in headers:
        headers["ETag"] = f'W/"{hashlib.sha256(body.get("body", b"")).hexdigest()[:32]}"'
    headers.setdefault("Cache-Control", "private, no-cache")
    if not (known and matches(known, headers["ETag"])):
        return {**start, "headers": headers.raw}, body
    kept = [(name, value) for name, value in headers.raw if name in KEPT]
    return {**start, "status": 304, "headers": kept}, {"type": "http.response.body", "body": b""}
