"""Devices and what was measured on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.program.target import Target
from tuner.program.workload import JsonObject


@dataclass(frozen=True, slots=True)
class Device:
    """A device that has registered: its tracker key, its target and its state."""

    id: str
    key: str
    target: Target
    state: str
    description: JsonObject
    registered_at: str
    seen_at: str


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A trial as its device saw it: when it was stored, for which job, and how fast the device ran (its anchor)."""

    device: str
    job_id: str
    job_name: str
    at: str
    anchor_s: float | None


class DeviceStorage(Protocol):
    """Registering and listing devices."""

    def register_device(self, device_id: str, key: str, target: Target, description: JsonObject) -> Device:
        """Add a device, or renew the one of that id (its target may have changed); ``seen_at`` becomes now."""

    def list_devices(self) -> tuple[Device, ...]:
        """In order of key and id."""

    def list_targets(self) -> tuple[Target, ...]:
        """Every target that a device or a search task has had, in the order in which they came."""

    def device_readings(self, limit: int = 20_000) -> tuple[DeviceReading, ...]:
        """Of the newest ``limit`` trials those whose device is known, oldest first."""
