"""What the routes are handed: the storage, the settings, the caller's key, and the parameters that lists share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Annotated, cast
from urllib.parse import parse_qs

from anyio import CapacityLimiter
from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from service.access.keys import Keys
from service.access.rates import Rates
from service.jobs.batches import Batches
from service.jobs.hub import Bell, EventHub
from service.metrics import Metrics
from service.settings import Settings
from tuner.storage import ApiKey
from tuner.storage.sql import ClientStorage, DeviceStorage, OperatorStorage, Storage

EVENT_THREADS = 4
EXPORT_THREADS = 2
"""Pages of exports that are read at once: the rest of the process's threads and time are for other requests."""
IMPORTS = 2
"""Imports of records at once; each takes a thread while it lasts."""


class EventStreams:
    """The open event streams of one service. ``closing`` requests all of them to end."""

    def __init__(self, hub: EventHub) -> None:
        self.open = 0
        self.closing = False
        # Threads of their own: however many streams read their events, a request never waits behind them.
        self.batches = Batches(CapacityLimiter(EVENT_THREADS))
        self._hub = hub

    @contextmanager
    def listening(self, job_id: str) -> Iterator[Bell]:
        """Counts a stream as open, and gives it what wakes it."""
        self.open += 1
        try:
            with self._hub.listening(job_id) as bell:
                yield bell
        finally:
            self.open -= 1

    def close(self) -> None:
        self.closing = True
        self._hub.ring_all()


# Coroutines, though they wait for nothing: each plain function would be called in a thread.
async def _storage(request: Request) -> Storage:
    return cast(Storage, request.app.state.storage)


async def _imports(request: Request) -> BoundedSemaphore:
    return cast(BoundedSemaphore, request.app.state.imports)


async def _exports(request: Request) -> CapacityLimiter:
    return cast(CapacityLimiter, request.app.state.exports)


async def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _event_streams(request: Request) -> EventStreams:
    return cast(EventStreams, request.app.state.event_streams)


async def _keys(request: Request) -> Keys:
    return cast(Keys, request.app.state.keys)


async def _rates(request: Request) -> Rates:
    return cast(Rates, request.app.state.rates)


async def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)


async def _form(request: Request) -> Mapping[str, str]:
    """The first value of each field of a URL-encoded form."""
    fields = parse_qs((await request.body()).decode(errors="replace"))
    return {name: values[0] for name, values in fields.items()}


async def _caller(request: Request) -> ApiKey:
    return cast(ApiKey, request.state.api_key)


StorageDep = Annotated[Storage, Depends(_storage)]
"""The whole storage, for routes that need several roles of it; the others take one."""
ClientDep = Annotated[ClientStorage, Depends(_storage)]
DevicesDep = Annotated[DeviceStorage, Depends(_storage)]
OperatorDep = Annotated[OperatorStorage, Depends(_storage)]
KeysDep = Annotated[Keys, Depends(_keys)]
RatesDep = Annotated[Rates, Depends(_rates)]
SettingsDep = Annotated[Settings, Depends(_settings)]
EventStreamsDep = Annotated[EventStreams, Depends(_event_streams)]
ImportsDep = Annotated[BoundedSemaphore, Depends(_imports)]
ExportsDep = Annotated[CapacityLimiter, Depends(_exports)]
MetricsDep = Annotated[Metrics, Depends(_metrics)]
FormDep = Annotated[Mapping[str, str], Depends(_form)]
CallerDep = Annotated[ApiKey, Depends(_caller)]

MAX_SEQ = 2**63 - 1
BLANK = BeforeValidator(lambda value: None if value == "" else value)
"""Of optional parameters: ``?cursor=`` is as good as none, so a script need not leave out what it has no value for."""
Cursor = Annotated[str | None, Query(max_length=200, description="what an earlier part of the list ended with"), BLANK]
Limit = Annotated[int, Query(ge=1, le=200)]
TaskQuery = Annotated[int, Query(alias="task", ge=0, description="the position of a search task in its job")]
After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="the number of the last one seen")]
