"""Checking what clients submit: few at a time, in threads of their own, and no longer than the client waits.

One check takes up to a second of a core (tuner.program.job.jobspec.MAX_STEPS). Many at once would keep every other
request waiting, so only AT_ONCE run, MAX_WAITING more wait their turn, and others are told to come again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from starlette.exceptions import HTTPException

T = TypeVar("T")
Abandon = Callable[[], bool]
"""Says whether the client has left."""

AT_ONCE = 2
MAX_WAITING = 64
RETRY_AFTER_S = 2
LOOK_S = 0.2
"""How often it is looked whether the client is still there."""


class Validation:
    """The checks of one service, counted on its event loop."""

    def __init__(self) -> None:
        self.waiting = 0
        # Made on first use: it belongs to the event loop.
        self._limiter: CapacityLimiter | None = None

    async def run(self, request: Request, check: Callable[[Abandon], T]) -> T:
        """Run ``check`` in one of the threads. It can see whether the client has left, and raises Abandoned then.

        Raises HTTPException 503 where too many wait already, and what ``check`` raises.
        """
        if self.waiting >= AT_ONCE + MAX_WAITING:
            detail = f"{MAX_WAITING} submissions are waiting to be checked; try again in {RETRY_AFTER_S} s"
            raise HTTPException(503, detail, {"Retry-After": str(RETRY_AFTER_S)})
        self._limiter = self._limiter or CapacityLimiter(AT_ONCE)
        left = threading.Event()
        watching = asyncio.create_task(_watch(request, left))
        self.waiting += 1
        try:
            return await to_thread.run_sync(partial(check, left.is_set), limiter=self._limiter)
        finally:
            self.waiting -= 1
            watching.cancel()


async def _watch(request: Request, left: threading.Event) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_S)
    left.set()


async def _validation(request: Request) -> Validation:
    return cast(Validation, request.app.state.validation)


ValidationDep = Annotated[Validation, Depends(_validation)]
