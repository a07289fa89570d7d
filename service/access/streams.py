"""Open streams end when their key is revoked or expires."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.keys import Keys
from tuner.storage import StorageUnavailable

SHORTEST_S = 0.05
GOODBYE = b": the API key was revoked or has expired\n\n"
"""A comment, as server-sent events have them: without the one that says a job has ended, a client tries again, and is
then told what is wrong with its key."""


class Streams:
    """Runs requests, and looks at the key of every one that streams once in ``every_s`` seconds: one look for all of
    them that have the same key, however many those are."""

    def __init__(self, keys: Keys, every_s: float) -> None:
        self._keys = keys
        self._every_s = max(SHORTEST_S, every_s)
        self._open: defaultdict[str, set[anyio.CancelScope]] = defaultdict(set)
        self._watcher: asyncio.Task[None] | None = None

    async def run(self, app: ASGIApp, secret: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_stream(message):
                self._watch(secret, running)
            await send(message)

        with anyio.CancelScope() as running:
            try:
                await app(scope, receive, watched_send)
            finally:
                self._leave(secret, running)
        if running.cancelled_caught:
            await send({"type": "http.response.body", "body": GOODBYE, "more_body": False})

    def _watch(self, secret: str, running: anyio.CancelScope) -> None:
        self._open[secret].add(running)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._look())

    def _leave(self, secret: str, running: anyio.CancelScope) -> None:
        if secret in self._open:
            self._open[secret].discard(running)
            if not self._open[secret]:
                del self._open[secret]

    async def _look(self) -> None:
        while self._open:
            await asyncio.sleep(self._every_s)
            for secret in list(self._open):
                if not await self._is_good(secret):
                    for running in list(self._open.get(secret, ())):
                        running.cancel()

    async def _is_good(self, secret: str) -> bool:
        try:
            return await self._keys.find(secret) is not None
        except StorageUnavailable:
            return True  # not known: streams outlive the database's absence


def _is_stream(message: Any) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])
