"""A client of the service: what the command line, build scripts and notebooks use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from shapewright.client_base import ClientBase, Turn
from shapewright.client_jobs import JobRequests
from shapewright.client_known import KnownRequests
from shapewright.client_names import NameRequests
from shapewright.connection import MAX_PROBLEM, open_http, read_whole
from shapewright.errors import BadDownload, NotAllowed, Refused, ServiceError, ServiceNotFound, ServiceUnreachable
from shapewright.steps import Call, Each, Item, Open, Pause, Piece, Step, Steps, T, Waiting, Work

__all__ = ["BadDownload", "Client", "NotAllowed", "Refused", "ServiceError", "ServiceNotFound", "ServiceUnreachable"]


class Client(ClientBase, JobRequests, KnownRequests, NameRequests, Waiting):
    """Talks to a service. Every method raises a ``ServiceError`` that says what to do; see ``shapewright.errors``.

    ``url`` and ``key`` default to SHAPEWRIGHT_URL and SHAPEWRIGHT_API_KEY, and the key then to the file that
    ``shapewright up`` leaves in ``data_dir``. Safe to use from several threads; close it, or use it in a ``with``.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        data_dir: str | Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(url, data_dir, clock)
        self._sleep = sleep
        self._http = self._opened(open_http, key)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        turn = Turn(steps)
        with ExitStack() as stack:
            _Request(self, stack).go_on(turn)
        result: T = turn.result
        return result

    def _each(self, steps: Each[T]) -> Iterator[T]:
        turn = Turn(steps)
        with ExitStack() as stack:
            request = _Request(self, stack)
            while (item := request.go_on(turn)) is not None:
                yield item.value
                turn.given(None)

    def _whole_answer(self, call: Call) -> httpx.Response:
        try:
            with self._http.stream(call.method, call.path, **call.request) as coming:
                response = read_whole(coming, call.most, self._clock)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        return response


class _Request:
    """Takes the steps of one request; ``stack`` closes the answer that is open."""

    def __init__(self, client: Client, stack: ExitStack) -> None:
        self._client, self._stack = client, stack
        self._pieces: Iterator[bytes] = iter(())

    def go_on(self, turn: Turn) -> Item[Any] | None:
        """Take steps until there is an item; None once there is a result."""
        while turn.step is not None and not isinstance(turn.step, Item):
            try:
                given = self._take(turn.step)
            except ServiceError as error:
                turn.failed(error)
            else:
                turn.given(given)
        return turn.step

    def _take(self, step: Step) -> object:
        client = self._client
        match step:
            case Call():
                return client._whole_answer(step)
            case Open():
                self._open(step)
            case Pause():
                client._sleep(step.seconds)
            case Piece():
                return self._next_piece()
            case Work():
                return step.function()
        return None

    def _open(self, step: Open) -> None:
        client = self._client
        self._stack.close()
        try:
            response = self._stack.enter_context(client._http.stream("GET", step.path, **step.request))
            if not response.is_success:
                client._check(read_whole(response, MAX_PROBLEM, client._clock))
        except httpx.HTTPError as error:
            raise client._unreachable(error) from error
        self._pieces = response.iter_bytes()

    def _next_piece(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except httpx.HTTPError as error:
            raise self._client._unreachable(error) from error
