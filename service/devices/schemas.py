"""Responses of the device routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.devices.token_schemas import RefusedOut
from tuner.storage import Device, DeviceSpeed, DeviceState, SpeedState


class SpeedOut(BaseModel):
    """What a fixed piece of work, which is timed beside every trial, takes the device."""

    state: SpeedState = Field(
        description="`throttled`: slower than usual; `noisy`: readings vary much. Both are asked less while others are "
        "there"
    )
    recent_s: float
    usual_s: float
    spread: float = Field(description="the width of the middle half of recent readings, by their median")

    @staticmethod
    def of(speed: DeviceSpeed) -> SpeedOut:
        return SpeedOut(state=speed.state, recent_s=speed.recent_s, usual_s=speed.usual_s, spread=speed.spread)


class DeviceOut(BaseModel):
    """A device that has registered. ``key`` is what a job's ``device`` names; several devices may share one."""

    id: str
    key: str
    state: DeviceState = Field(
        description="`quarantined`: it gets no work; `probation`: it is over, one more failure makes another"
    )
    failures: int = Field(description="in a row")
    reason: str = Field(description="of the last failure, or of the quarantine")
    quarantined_until: str | None = Field(description="null: until it is released")
    speed: SpeedOut | None = Field(description="null until it has measured enough")
    token_id: str | None = Field(description="the token by which it last joined; null: it has needed none")
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
            failures=device.failures,
            reason=device.reason,
            quarantined_until=device.quarantined_until,
            speed=None if device.speed is None else SpeedOut.of(device.speed),
            token_id=None if device.joined is None else device.joined.token_id,
            target_fingerprint=device.target.fingerprint,
            target=device.target.to_json(),
            description=device.description,
            registered_at=device.registered_at,
            seen_at=device.seen_at,
        )


class DeviceList(BaseModel):
    """All devices, in order of key and id. ``refused``: those that lately wanted to be, and may not."""

    items: list[DeviceOut]
    refused: list[RefusedOut]


class QuarantineIn(BaseModel):
    """Why a device gets no more work."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=1000)
