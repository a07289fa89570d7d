"""Events as streams send them, a batch at a time: read once for all streams of a job that are at the same place.

Fifty streams that follow a search are woken by each commit, and all want the same events next. A thread takes some 60
microseconds to read an event and to put it into its form, a hundred times what it takes to send it.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from anyio import CapacityLimiter, to_thread
from fastapi.sse import format_sse_event

from tuner.storage import JobEvent
from tuner.storage.sql import ClientStorage

BATCH = 500
MAX_KEPT = 32 << 20
"""Bytes of full batches that are kept: streams that are not at the same place are mostly near one another."""
_Key = tuple[asyncio.AbstractEventLoop, str, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """``last``: the number of its last event, or that after which it was read. ``has_state``: an event of it may say
    that the job has ended. ``job_ended``: whether it has; None: nobody has asked, or there were events."""

    content: bytes
    last: int
    has_state: bool
    is_full: bool
    job_ended: bool | None = None


def read(storage: ClientStorage, job_id: str, after: int, may_have_ended: bool) -> Batch:
    """The events after number ``after``, at most BATCH of them. ``may_have_ended``: to ask for the job's state where
    there are none."""
    events, job_ended = storage.list_events(job_id, after, BATCH), None
    if not events and may_have_ended:
        # The job first, its events second: what ended it was stored with the state, so no event is missed.
        job_ended = storage.get_job(job_id).state.ended
        events = storage.list_events(job_id, after, BATCH) if job_ended else ()
    has_state = any(event.kind == "state" for event in events)
    last = events[-1].seq if events else after
    return Batch(b"".join(map(_framed, events)), last, has_state, len(events) == BATCH, job_ended)


def _framed(event: JobEvent) -> bytes:
    # ASCII only, so that no reader's notion of a line break can cut an event in two.
    data = json.dumps(asdict(event), ensure_ascii=True, allow_nan=False)
    return format_sse_event(id=str(event.seq), event=event.kind, data_str=data)


def _noticed(task: asyncio.Task[Batch]) -> None:
    """An error of which every stream has left is nobody's."""
    if not task.cancelled():
        task.exception()


class Batches:
    """The reads of one service, in threads of ``limiter``. Used on the event loop, by streams alone."""

    def __init__(self, limiter: CapacityLimiter) -> None:
        self._limiter = limiter
        self._reading: dict[_Key, asyncio.Task[Batch]] = {}
        self._kept: OrderedDict[_Key, Batch] = OrderedDict()
        self._bytes = 0

    async def read(self, storage: ClientStorage, job_id: str, after: int, may_have_ended: bool) -> Batch:
        """As ``read``, of what was stored when it was called or later. Raises what that raises."""
        key = (asyncio.get_running_loop(), job_id, after)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        if (earlier := self._reading.get(key)) is not None:
            batch = await asyncio.shield(earlier)
            if batch.content:
                return batch
            # It may have looked before the commit that this stream was woken by. What was begun since has not.
            if (later := self._reading.get(key)) not in (None, earlier):
                return await asyncio.shield(later)
        # A task of its own: others wait for it, even if this stream's client leaves.
        own = asyncio.create_task(self._in_thread(key, partial(read, storage, job_id, after, may_have_ended)))
        self._reading[key] = own
        own.add_done_callback(_noticed)
        return await asyncio.shield(own)

    async def _in_thread(self, key: _Key, read: Callable[[], Batch]) -> Batch:
        try:
            batch = await to_thread.run_sync(read, limiter=self._limiter)
        finally:
            if self._reading.get(key) is asyncio.current_task():
                del self._reading[key]
        if batch.is_full:
            # Numbers have no gaps: what comes after this one will always be these.
            self._keep(key, batch)
        return batch

    def _keep(self, key: _Key, batch: Batch) -> None:
        self._bytes += len(batch.content) - len(self._kept[key].content if key in self._kept else b"")
        self._kept[key] = batch
        while self._bytes > MAX_KEPT:
            self._bytes -= len(self._kept.popitem(last=False)[1].content)
