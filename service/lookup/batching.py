"""Micro-batching of lookups: requests that come at about the same time are answered by one call.

A lookup is a few statements, and a call of many queries takes as many of them as a call of one. While a call runs,
queries that arrive wait for the next one: alone a query waits for nothing, under load it shares its cost. A thread for
each request would have the threads contend for the GIL instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from anyio import to_thread

from service.lookup.lookups import Answer, Query
from tuner.errors import ShapewrightError
from tuner.library.lookup import BestAnswer
from tuner.storage import StorageUnavailable

AT_ONCE = 2
"""Calls that run at the same time: one may wait for the database while the other computes."""
MOST = 64
"""Queries of one call."""

Waiting = tuple[Query, "asyncio.Future[Answer]"]


class LookupBatcher:
    """Answers queries, one at a time for each caller, of one event loop. ``answers``: as of ``Lookups``."""

    def __init__(self, answers: Callable[[Sequence[Query]], list[Answer]]) -> None:
        self._answers = answers
        self._waiting: list[Waiting] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def best(self, query: Query) -> BestAnswer:
        """Raises NotFound, InvalidInput for a shape that does not fit, and StorageUnavailable."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, future))
        if len(self._calls) < AT_ONCE:
            call = asyncio.create_task(self._run())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        answer = await future
        if isinstance(answer, ShapewrightError):
            raise answer
        return answer

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            await self._answer(batch)

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        try:
            answers = await to_thread.run_sync(self._answers, [query for query, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, StorageUnavailable):
                # It is of one query: the others have answers.
                for each in batch:
                    await self._answer([each])
                return
            for _, future in batch:
                _settle(future, error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            _settle(future, answer)


def _settle(future: asyncio.Future[Answer], answer: Answer | Exception) -> None:
    if future.done():
        return  # the client has left
    if isinstance(answer, BestAnswer | ShapewrightError):
        future.set_result(answer)
    else:
        future.set_exception(answer)
