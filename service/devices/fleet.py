"""What every device does now and did lately. What is slow to read is read once for all who look at it."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request

from service.devices.paces import paces
from service.devices.spans import Span, newest, spans_of
from service.times import parse_time
from tuner.storage import ActiveJob, Activity, Device, DeviceState, DeviceUse, JobState, Slot
from tuner.storage.sql import DeviceStorage

HOUR_S = 3600.0
"""The window of the utilisation that is shown."""
SEEN_S = 60.0
"""A device that was not seen for longer, and has measured nothing since, is away."""
LATELY_S = 60.0
"""A device whose last trial is no older than this, of a job that is worked on, is busy: trials come in batches."""
MAX_SLOTS, MIN_SLOTS, FINEST_SLOTS = 24_000, 60, 240
"""Slots of all devices, and of one: as fine as a screen shows, as coarse as many devices need."""
MAX_SPANS = 5000
"""Spans of one answer. The oldest are left out."""
KEPT_S, RESTS = 3.0, 10.0
"""How long what was read is used again, or, where that is longer, for how many times as long as the reading took."""
MAX_KEPT = 8
NO_USE = DeviceUse(0.0, 0, 0)
WORKED_ON = (JobState.RUNNING, JobState.CANCELLING)


class Status(StrEnum):
    """What a device does. PROBATION: its quarantine is over, and it has not measured anything since."""

    BUSY = "busy"
    IDLE = "idle"
    PROBATION = "probation"
    QUARANTINED = "quarantined"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Member:
    """A device as it is now. ``job``: the one that it works on; ``use`` and ``utilisation`` are of the last hour."""

    device: Device
    status: Status
    job: ActiveJob | None
    use: DeviceUse
    spans: tuple[Span, ...]
    pace: str = ""
    """What is to be said of its speed: throttled, noisy, or unlike the others of its key."""

    @property
    def utilisation(self) -> float:
        """The share of the hour that trials ran, 0 to 1."""
        return min(1.0, self.use.busy_s / HOUR_S)


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """The devices of a key, and the jobs that wait for them or run on them."""

    key: str
    members: tuple[Member, ...]
    waiting: int
    running: int

    @property
    def utilisation(self) -> float:
        return sum(each.utilisation for each in self.members) / len(self.members) if self.members else 0.0

    @property
    def statuses(self) -> Mapping[Status, int]:
        """How many devices are in each status; those that none is in are left out."""
        counted = Counter(each.status for each in self.members)
        return {status: counted[status] for status in Status if counted[status]}


@dataclass(frozen=True, slots=True)
class Fleet:
    """All devices by key, and a window of ``seconds`` that begins at ``start_s``, seconds since 1970.

    Spans are told from there on; none is missing from ``complete_from_s`` on.
    """

    start_s: float
    seconds: float
    groups: tuple[KeyGroup, ...]
    jobs: Mapping[str, ActiveJob]
    complete_from_s: float = 0.0


Value = TypeVar("Value")


class Fleets:
    """The fleet of one service. Safe to use from several threads: one reads, the others wait for it."""

    def __init__(self, storage: DeviceStorage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = storage, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, ...], tuple[float, Any]] = OrderedDict()

    def get(self, seconds: int) -> Fleet:
        """Raises StorageUnavailable."""
        devices, queued = self._storage.list_devices(), self._storage.queue_counts()
        slots = max(MIN_SLOTS, min(FINEST_SLOTS, MAX_SLOTS // max(1, len(devices))))
        slot_s = seconds / slots
        with self._lock:
            read = self._kept_or(seconds, slots, read=lambda: self._storage.device_activity(seconds, slot_s))
            use = self._kept_or(read=lambda: self._storage.device_use(HOUR_S))
        start_s = window_start_s(read.now_s, seconds, slot_s)
        by_device = slots_by_device(read)
        spans = [spans_of(by_device.get(each.id, ()), start_s, slot_s) for each in devices]
        spans, complete_from_s = newest(spans, MAX_SPANS)
        told = paces(devices)
        members = [
            member_of(device, read, by_device.get(device.id, ()), use.get(device.id, NO_USE), own, told[device.id])
            for device, own in zip(devices, spans, strict=True)
        ]
        return Fleet(start_s, seconds, _groups(members, queued), read.jobs, complete_from_s)

    def _kept_or(self, *name: int, read: Callable[[], Value]) -> Value:
        until_s, value = self._kept.pop(name, (0.0, None))
        if value is None or self._clock() >= until_s:
            began_s = self._clock()
            value = read()
            until_s = self._clock() + max(KEPT_S, RESTS * (self._clock() - began_s))
        self._kept[name] = until_s, value
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return cast(Value, value)


def window_start_s(now_s: float, seconds: float, slot_s: float) -> float:
    """The begin of a window that holds now: a multiple of the slot, so that an answer stays the same for as long."""
    return (now_s // slot_s + 1) * slot_s - seconds


def slots_by_device(activity: Activity) -> Mapping[str, tuple[Slot, ...]]:
    return {name: tuple(slots) for name, slots in groupby(activity.slots, key=lambda slot: slot.device)}


def member_of(
    device: Device,
    activity: Activity,
    slots: Sequence[Slot],
    use: DeviceUse,
    spans: tuple[Span, ...],
    pace: str = "",
) -> Member:
    last = max(slots, key=lambda slot: slot.end_s, default=None)
    is_recent = last is not None and activity.now_s - last.end_s <= LATELY_S
    job = activity.jobs[last.job_id] if last is not None and is_recent else None
    if job is not None and (job.state not in WORKED_ON or device.state is DeviceState.QUARANTINED):
        job = None
    return Member(device, _status(device, activity.now_s, is_recent, job), job, use, spans, pace)


def _status(device: Device, now_s: float, is_recent: bool, job: ActiveJob | None) -> Status:
    seen = parse_time(device.seen_at)
    if device.state is DeviceState.QUARANTINED:
        return Status.QUARANTINED
    if not is_recent and (seen is None or now_s - seen.timestamp() > SEEN_S):
        return Status.AWAY
    if device.state is DeviceState.PROBATION:
        return Status.PROBATION
    return Status.IDLE if job is None else Status.BUSY


def _groups(members: Iterable[Member], queued: Mapping[str, Mapping[JobState, int]]) -> tuple[KeyGroup, ...]:
    by_key: dict[str, list[Member]] = {key: [] for key in queued}
    for member in members:
        by_key.setdefault(member.device.key, []).append(member)
    return tuple(
        KeyGroup(
            key,
            tuple(by_key[key]),
            queued.get(key, {}).get(JobState.WAITING, 0),
            sum(queued.get(key, {}).get(state, 0) for state in WORKED_ON),
        )
        for key in sorted(by_key)
    )


async def _fleets(request: Request) -> Fleets:
    return cast(Fleets, request.app.state.fleets)


FleetsDep = Annotated[Fleets, Depends(_fleets)]
