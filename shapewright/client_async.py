"""The client for programs that await: every request is the one that ``Client`` has."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx

from shapewright.client_base import ClientBase, Turn
from shapewright.client_jobs import JobRequests
from shapewright.client_known import KnownRequests
from shapewright.client_names import NameRequests
from shapewright.connection import MAX_PROBLEM, open_async_http, read_whole_async
from shapewright.errors import ServiceError
from shapewright.steps import Awaited, Call, Each, Item, Open, Pause, Piece, Step, Steps, T, Work


class AsyncClient(ClientBase, JobRequests, KnownRequests, NameRequests, Awaited):
    """``Client`` for asyncio and trio: its methods are awaited, and what it lists is iterated with ``async for``.

    A request that is cancelled closes its connection. Close it with ``aclose``, or use it in an ``async with``.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        data_dir: str | Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(url, data_dir, clock)
        self._sleep = sleep or anyio.sleep
        self._http = self._opened(open_async_http, key)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, steps: Steps[T]) -> T:
        turn = Turn(steps)
        async with AsyncExitStack() as stack:
            await _Request(self, stack).go_on(turn)
        result: T = turn.result
        return result

    async def _each(self, steps: Each[T]) -> AsyncIterator[T]:
        turn = Turn(steps)
        async with AsyncExitStack() as stack:
            request = _Request(self, stack)
            while (item := await request.go_on(turn)) is not None:
                yield item.value
                turn.given(None)

    async def _whole_answer(self, call: Call) -> httpx.Response:
        content = call.request.get("content")
        request = {**call.request, "content": _awaited(content)} if isinstance(content, Iterator) else call.request
        try:
            async with self._http.stream(call.method, call.path, **request) as coming:
                response = await read_whole_async(coming, call.most, self._clock)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        return response


class _Request:
    """Takes the steps of one request; ``stack`` closes the answer that is open."""

    def __init__(self, client: AsyncClient, stack: AsyncExitStack) -> None:
        self._client, self._stack = client, stack
        self._pieces: AsyncIterator[bytes] | None = None

    async def go_on(self, turn: Turn) -> Item[Any] | None:
        """Take steps until there is an item; None once there is a result."""
        while turn.step is not None and not isinstance(turn.step, Item):
            try:
                given = await self._take(turn.step)
            except ServiceError as error:
                turn.failed(error)
            else:
                turn.given(given)
        return turn.step

    async def _take(self, step: Step) -> object:
        client = self._client
        match step:
            case Call():
                return await client._whole_answer(step)
            case Open():
                await self._open(step)
            case Pause():
                await client._sleep(step.seconds)
            case Piece():
                return await self._next_piece()
            case Work():
                return await anyio.to_thread.run_sync(step.function)
        return None

    async def _open(self, step: Open) -> None:
        client = self._client
        await self._stack.aclose()
        try:
            response = await self._stack.enter_async_context(client._http.stream("GET", step.path, **step.request))
            if not response.is_success:
                client._check(await read_whole_async(response, MAX_PROBLEM, client._clock))
        except httpx.HTTPError as error:
            raise client._unreachable(error) from error
        self._pieces = aiter(response.aiter_bytes())

    async def _next_piece(self) -> bytes | None:
        try:
            return await anext(self._pieces, None) if self._pieces is not None else None
        except httpx.HTTPError as error:
            raise self._client._unreachable(error) from error


async def _awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
