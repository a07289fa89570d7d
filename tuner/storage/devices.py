"""Devices and what was measured on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol

from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.program.target.calibration import Calibration
from tuner.storage.device_tokens import Joined

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


class SpeedState(StrEnum):
    """THROTTLED: slower than the device usually is. NOISY: its readings vary much."""

    STEADY = "steady"
    THROTTLED = "throttled"
    NOISY = "noisy"


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What the fixed piece of work that is timed beside every trial takes a device, in seconds: ``recent_s`` lately,
    ``usual_s`` at its usual speed. ``spread``: the width of the middle half of recent readings, by their median."""

    state: SpeedState
    recent_s: float
    usual_s: float
    spread: float

    @property
    def slowdown(self) -> float:
        """How many times as long as usual it takes."""
        return self.recent_s / self.usual_s

    def __str__(self) -> str:
        if self.state is SpeedState.THROTTLED:
            return f"throttled: reference work takes {self.slowdown:.2f} times as long as usual"
        if self.state is SpeedState.NOISY:
            return f"noisy: half of its readings of reference work vary by {100 * self.spread:.0f} %"
        return "steady"

    def to_json(self) -> JsonObject:
        return asdict(self)

    @staticmethod
    def from_json(data: JsonObject) -> DeviceSpeed:
        return DeviceSpeed(SpeedState(data["state"]), data["recent_s"], data["usual_s"], data["spread"])


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


class DeviceStorage(Protocol):
    """Registering and listing devices, and what becomes of those that fail."""

    def register_device(
        self, device_id: str, key: str, target: Target, description: JsonObject, joined: Joined | None = None
    ) -> Device:
        """Add a device, or renew the one of that id (its target may have changed); ``seen_at`` becomes now.

        ``joined`` is kept until it changes, and its token was used now.
        """

    def list_devices(self) -> tuple[Device, ...]:
        """All devices, in order of key and id."""

    def device_failed(self, device_id: str, reason: str) -> Device:
        """Count a failure: after QUARANTINE_AFTER in a row the device is quarantined for a while. Raises NotFound."""

    def device_worked(self, device_id: str) -> None:
        """Forget its failures. One that somebody quarantined stays so."""

    def device_speed(self, device_id: str, speed: DeviceSpeed) -> None:
        """Keep how fast it is. A change of its state is in the audit trail. Nothing happens for an unknown device."""

    def device_calibrated(self, device_id: str, calibration: Calibration) -> None:
        """Keep a calibration in place of an earlier one for the same target and threads, MAX_CALIBRATIONS in all.

        Nothing happens for an unknown device.
        """

    def quarantine_device(self, device_id: str, reason: str, actor: str) -> Device:
        """Give it no more work until it is released. Raises NotFound."""

    def release_device(self, device_id: str, actor: str) -> Device:
        """End its quarantine and forget its failures. Raises NotFound."""

    def list_targets(self) -> tuple[Target, ...]:
        """Every target that a device or a search task has had, in the order in which they came."""

    def device_readings(self, limit: int = 20_000, device_id: str | None = None) -> tuple[DeviceReading, ...]:
        """Readings of the newest ``limit`` trials (of one device, if given) whose device is known, oldest first."""
