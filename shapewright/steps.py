"""Requests as steps: what is asked, and what is done with the answers, whoever sends them.

A request is a generator. It yields a step and is sent what the step gives. ``Client`` takes the steps one after the
other, ``AsyncClient`` awaits them: both have every request from its one definition.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

from shapewright.connection import MAX_ANSWER, Fields, read_json

P = ParamSpec("P")
T = TypeVar("T")
# An open stream is never silent for longer than 15 s: the service sends comments to keep it alive.
STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)
PAGE = 200


@dataclass(frozen=True, slots=True)
class Call:
    """Send a request; gives the httpx.Response, whole, of ``most`` bytes at most. Raises ServiceError.

    ``request``: further arguments of ``httpx.Client.stream``.
    """

    method: str
    path: str
    most: int = MAX_ANSWER
    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer comes in pieces; gives None. The answer that was open before is closed."""

    path: str
    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """Give the next bytes of the answer that is open; None at its end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Do something that asks nobody and takes a while; gives its result."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """Hand an item to who iterates; gives None."""

    value: T


Step = Call | Open | Piece | Pause | Work
Steps = Generator[Step, Any, T]
"""A request with one result, of type T."""
Each = Generator[Step | Item[T], Any, None]
"""A request whose items, of type T, come one by one."""


def ask(method: str, path: str, **request: Any) -> Steps[Fields]:
    """Send a request and read the object that answers it. Parameters that are None are left out."""
    if "params" in request:
        request["params"] = {name: value for name, value in request["params"].items() if value is not None}
    response: httpx.Response = yield Call(method, path, request=request)
    return read_json(response.content, str(response.request.url))


def pieces(path: str, params: Mapping[str, Any]) -> Each[bytes]:
    """An answer of any length."""
    yield Open(path, {"params": params, "timeout": STREAM_TIMEOUT})
    while (piece := (yield Piece())) is not None:
        yield Item(piece)


def items(path: str, limit: int, **params: object) -> Steps[list[dict[str, Any]]]:
    """The first ``limit`` items of a list that comes in pages."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(found) < limit:
        asked = {**params, "cursor": cursor, "limit": min(PAGE, limit - len(found))}
        page: Fields = yield from ask("GET", path, params=asked)
        found += page.rows("items")
        cursor = page["cursor"]
        if cursor is None:
            break
    return found


def collected(items: Each[T]) -> Steps[list[T]]:
    """All items of a request together."""
    found: list[T] = []
    given: object = None
    while True:
        try:
            step = items.send(given)
        except StopIteration:
            return found
        if isinstance(step, Item):
            found.append(step.value)
            given = None
        else:
            given = yield step


class Waiting:
    """A client whose methods return once they are answered."""

    def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def _each(self, steps: Each[T]) -> Iterator[T]:
        raise NotImplementedError


class Awaited:
    """A client whose methods are awaited."""

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def _each(self, steps: Each[T]) -> AsyncIterator[T]:
        raise NotImplementedError


class request(Generic[P, T]):  # noqa: N801  (a decorator)
    """Makes a request with one result a method of both kinds of client."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Waiting, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaited, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: object, owner: type) -> Callable[..., Any]:
        return _method(self.steps, "_run", "{}", client, owner)


class each(Generic[P, T]):  # noqa: N801  (a decorator)
    """Makes a request whose items come one by one a method of both kinds of client."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Each[T]]) -> None:
        self.steps = steps

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Waiting, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Awaited, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: object, owner: type) -> Callable[..., Any]:
        kind = "AsyncIterator" if issubclass(owner, Awaited) else "Iterator"
        return _method(self.steps, "_each", f"{kind}[{{}}]", client, owner)


def _method(steps: Callable[..., Any], runner: str, returns: str, client: object, owner: type) -> Callable[..., Any]:
    """A function, or a bound method, with the signature and the docstring that ``help`` is to show."""

    @functools.wraps(steps)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, runner)(steps(self, *args, **kwargs))

    signature = inspect.signature(steps)
    result = returns.format(str(signature.return_annotation).partition("[")[2].removesuffix("]"))
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    method.__qualname__ = f"{owner.__name__}.{steps.__name__}"
    return method if client is None else MethodType(method, client)
