"""What devices were busy with lately: read from the trials that they measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.records import TuningRecord
from tuner.storage.devices import Device
from tuner.storage.jobs import JobState


@dataclass(frozen=True, slots=True)
class Slot:
    """What a device measured for one job in one slot of time: from the first trial's begin to the last one's end, in
    seconds since 1970 by the database's clock. ``busy_s`` of it trials ran."""

    device: str
    job_id: str
    start_s: float
    end_s: float
    trials: int
    failed: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that trials are of. ``number`` counts jobs in the order of submission."""

    id: str
    number: int
    name: str
    state: JobState


@dataclass(frozen=True, slots=True)
class Activity:
    """``slots`` of a window of time that ends at ``now_s``, by device in order of time, and their ``jobs`` by id."""

    now_s: float
    slots: tuple[Slot, ...]
    jobs: Mapping[str, ActiveJob]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device did in a window of time: how long trials ran, and how many, failed ones included."""

    busy_s: float
    trials: int
    failed: int


class ActivityStorage(Protocol):
    """Reading what devices do. It costs what the trials of the window cost to read, by an index; nothing is kept up to
    date for it."""

    def get_device(self, device_id: str) -> Device:
        """Raises NotFound."""

    def device_activity(self, seconds: float, slot_s: float, device_id: str | None = None) -> Activity:
        """The last ``seconds`` in slots of ``slot_s``: of one device or of all that are registered."""

    def device_use(self, seconds: float) -> Mapping[str, DeviceUse]:
        """The use of each device that measured anything in the last ``seconds``, by device."""

    def queue_counts(self) -> Mapping[str, Mapping[JobState, int]]:
        """The number of jobs that wait or are worked on, by device key and state."""

    def newest_trials(self, device_id: str, limit: int = 20, failed: bool = False) -> tuple[TuningRecord, ...]:
        """The newest trials of a device, or the failed ones among its newest few thousand; newest first."""

    def trials_on(self, device_id: str, most: int = 100_000) -> int:
        """How many trials a device has stored, counted up to ``most``."""
