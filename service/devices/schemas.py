"""Responses of the device routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tuner.storage import Device


class DeviceOut(BaseModel):
    """A device that has registered. ``key`` is what a job's ``device`` names; several devices may share one."""

    id: str
    key: str
    state: str
    target_fingerprint: str
    target: dict[str, Any]
    description: dict[str, Any]
    registered_at: str
    seen_at: str

    @staticmethod
    def of(device: Device) -> DeviceOut:
        return DeviceOut(
            id=device.id,
            key=device.key,
            state=device.state,
            target_fingerprint=device.target.fingerprint,
            target=device.target.to_json(),
            description=device.description,
            registered_at=device.registered_at,
            seen_at=device.seen_at,
        )


class DeviceList(BaseModel):
    """All devices, in order of key and id."""

    items: list[DeviceOut]
