"""The event stream of a job: everything stored so far, then what is added, until the job has ended.

The database is the only channel between workers and streams. Any service process can therefore serve any stream, and
resume one that broke from its last number.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse

from service.dependencies import EventStreams
from service.jobs.hub import Bell
from service.settings import Settings
from tuner.errors import InvalidInput
from tuner.storage import StorageUnavailable
from tuner.storage.sql import ClientStorage

AWAY_S = 0.5
"""The pause before another attempt while the database is unavailable."""
KEEP_ALIVE_S = 15.0
"""How long a stream says nothing at most: proxies close connections that are silent for a minute."""
END = "end"
"""The comment at the end of the stream of a job that has ended; without it, a client has to reconnect."""


class EventStream(StreamingResponse):
    """Server-sent events. The framework's own response would run two tasks for each stream, and wake both to keep its
    connection open."""

    media_type = "text/event-stream"


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            EventStream.media_type: {
                "itemSchema": {
                    "type": "object",
                    "description": "one event; `data` is JSON as GET /v1/jobs/{job_id} has it",
                    "properties": {
                        "id": {"type": "string", "pattern": "^[0-9]+$"},
                        "event": {"type": "string"},
                        "data": {"type": "string", "contentMediaType": "application/json"},
                    },
                    "required": ["id", "event", "data"],
                }
            }
        }
    }
}
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream. Proxies of the Nginx kind buffer a response unless a header says otherwise."""


def start_after(last_event_id: str | None, after: int) -> int:
    """The number after which a stream begins: the last one the client has, in ``Last-Event-ID`` when it reconnects."""
    if last_event_id is None or last_event_id == "":
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= 18):
        raise InvalidInput("Last-Event-ID", f"{last_event_id[:40]!r} is not an event's number", "an id of this stream")
    return int(last_event_id)


async def follow(
    storage: ClientStorage,
    job_id: str,
    after: int,
    streams: EventStreams,
    settings: Settings,
    *,
    stay: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[bytes]:
    """The events of a job from number ``after`` on. While the database is unavailable the stream stays open.

    Without ``stay`` it ends once all stored events are sent.
    """
    closes_at = clock() + settings.event_stream_s
    # A job ends together with a state event: until one arrives there is no need to query the job's state.
    may_have_ended = True
    with streams.listening(job_id) as bell:
        while not streams.closing and (left_s := closes_at - clock()) > 0:
            bell.clear()
            content = b""
            try:
                batch = await streams.batches.read(storage, job_id, after, may_have_ended)
                content, after = batch.content, batch.last
                may_have_ended = (may_have_ended if batch.job_ended is None else batch.job_ended) or batch.has_state
                has_ended = not content and bool(batch.job_ended or not stay)
            except StorageUnavailable:
                has_ended, left_s = False, min(left_s, AWAY_S)
            if content:
                # Sent before the next batch is read: a listener that is slow holds one, and no thread.
                yield content
            elif has_ended:
                yield format_sse_event(comment=END)
                return
            else:
                async for comment in _until_rung(bell, left_s, clock):
                    yield comment


async def _until_rung(bell: Bell, within_s: float, clock: Callable[[], float]) -> AsyncIterator[bytes]:
    """Comments that keep an idle connection open, for at most ``within_s``."""
    until = clock() + within_s
    while not await bell.wait(min(KEEP_ALIVE_S, max(0.0, until - clock()))) and clock() < until:
        yield KEEPALIVE_COMMENT
