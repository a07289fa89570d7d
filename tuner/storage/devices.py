"""Devices, what was measured on them, and what they were busy with lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tuner.device_speed import DeviceSpeed
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.program.target.calibration import Calibration
from tuner.storage.device_tokens import Joined
from tuner.storage.jobs import JobState

QUARANTINE_AFTER = 3
"""Failures in a row."""
FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S = 60.0, 3600.0
"""The first and the longest quarantine: each is twice as long as the one before."""
MAX_CALIBRATIONS = 16
"""Calibrations of one device. The oldest are forgotten: they can be made again."""


class DeviceState(StrEnum):
    """QUARANTINED: it gets no work. PROBATION: its quarantine is over; one more failure, and it is longer."""

    READY = "ready"
    QUARANTINED = "quarantined"
    PROBATION = "probation"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that has registered: its tracker key, its target and its state.

    ``failures`` in a row, the last for ``reason``. ``speed`` is None until it has measured enough. A quarantine without
    ``quarantined_until`` ends when somebody releases the device.
    """

    id: str
    key: str
    target: Target
    state: DeviceState
    description: JsonObject
    registered_at: str
    seen_at: str
    failures: int = 0
    reason: str = ""
    quarantined_until: str | None = None
    speed: DeviceSpeed | None = None
    joined: Joined | None = None
    """How it last joined where that takes a token."""
    calibrations: tuple[Calibration, ...] = ()
    """One for each target and number of threads that it was calibrated for, the newest last."""

    def calibration(self, target: Target, threads: int) -> Calibration | None:
        """The calibration of this version for a target and a number of threads."""
        return next((each for each in self.calibrations if each.serves(target, threads)), None)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A trial as its device saw it: when it was stored, for which job, and how fast the device ran (its anchor)."""

    device: str
    job_id: str
    job_name: str
    at: str
    anchor_s: float | None


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
