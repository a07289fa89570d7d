"""Devices and what was measured on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tuner.program.target import Target
from tuner.program.workload import JsonObject

QUARANTINE_AFTER = 3
"""Failures in a row."""
FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S = 60.0, 3600.0
"""Each is twice as long as the one before."""


class DeviceState(StrEnum):
    """QUARANTINED: it gets no work. PROBATION: its quarantine is over; one more failure, and it is longer."""

    READY = "ready"
    QUARANTINED = "quarantined"
    PROBATION = "probation"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that has registered: its tracker key, its target and its state.

    ``failures`` in a row, the last for ``reason``. A quarantine without ``quarantined_until`` ends when somebody
    releases the device.
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

    def register_device(self, device_id: str, key: str, target: Target, description: JsonObject) -> Device:
        """Add a device, or renew the one of that id (its target may have changed); ``seen_at`` becomes now."""

    def list_devices(self) -> tuple[Device, ...]:
        """In order of key and id."""

    def device_failed(self, device_id: str, reason: str) -> Device:
        """Count a failure: after QUARANTINE_AFTER in a row the device is quarantined for a while. Raises NotFound."""

    def device_worked(self, device_id: str) -> None:
        """Forget its failures. One that somebody quarantined stays so."""

    def quarantine_device(self, device_id: str, reason: str, actor: str) -> Device:
        """Give it no more work until it is released. Raises NotFound."""

    def release_device(self, device_id: str, actor: str) -> Device:
        """End its quarantine and forget its failures. Raises NotFound."""

    def list_targets(self) -> tuple[Target, ...]:
        """Every target that a device or a search task has had, in the order in which they came."""

    def device_readings(self, limit: int = 20_000, device_id: str | None = None) -> tuple[DeviceReading, ...]:
        """Of the newest ``limit`` trials (of one device, if given) those whose device is known, oldest first."""
