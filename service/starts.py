"""Event streams start a few at a time.

Thousands that are opened at once, as by clients that all come back after a restart, would each have their turn of the
event loop, and of the threads that requests share, before any other request.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.paths import path_of

AT_ONCE = 8
_PATH = re.compile(r"/v1/jobs/[^/]+/events")


class PacedStarts:
    """A middleware: the others wait until the answer of one before them has begun."""

    def __init__(self, app: ASGIApp, at_once: int = AT_ONCE) -> None:
        self._app = app
        self._places = asyncio.Semaphore(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _PATH.fullmatch(path_of(scope)):
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as place:
            await place.enter_async_context(self._places)

            async def begun(message: Message) -> None:
                await send(message)
                await place.aclose()

            await self._app(scope, receive, begun)
