"""What the routes are handed: the storage, the settings, the caller's key, and the parameters that lists share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

from anyio import CapacityLimiter
from fastapi import Depends, Query, Request

from service.settings import Settings
from tuner.storage import (
    AccessStorage,
    ApiKey,
    DeviceStorage,
    JobStorage,
    LibraryStorage,
    RecordStorage,
    Storage,
    WorkloadStorage,
)

EVENT_THREADS = 8


@dataclass(slots=True)
class EventStreams:
    """The open event streams of one service. ``closing`` asks all of them to end."""

    open: int = 0
    closing: bool = False
    # Threads of their own: however many streams look for news, a request never waits behind them.
    limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(EVENT_THREADS))


def _storage(request: Request) -> Storage:
    return cast(Storage, request.app.state.storage)


def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


def _event_streams(request: Request) -> EventStreams:
    return cast(EventStreams, request.app.state.event_streams)


def _caller(request: Request) -> ApiKey:
    return cast(ApiKey, request.state.api_key)


StorageDep = Annotated[Storage, Depends(_storage)]
"""The whole storage, for routes that need most of it; the others take a part of it."""
JobsDep = Annotated[JobStorage, Depends(_storage)]
RecordsDep = Annotated[RecordStorage, Depends(_storage)]
WorkloadsDep = Annotated[WorkloadStorage, Depends(_storage)]
LibrariesDep = Annotated[LibraryStorage, Depends(_storage)]
DevicesDep = Annotated[DeviceStorage, Depends(_storage)]
AccessDep = Annotated[AccessStorage, Depends(_storage)]
SettingsDep = Annotated[Settings, Depends(_settings)]
EventStreamsDep = Annotated[EventStreams, Depends(_event_streams)]
CallerDep = Annotated[ApiKey, Depends(_caller)]

MAX_SEQ = 2**63 - 1
Cursor = Annotated[str | None, Query(max_length=200, description="what an earlier part of the list ended with")]
Limit = Annotated[int, Query(ge=1, le=200)]
TaskQuery = Annotated[int, Query(alias="task", ge=0, description="the position of a search task in its job")]
After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="the number of the last one seen")]
