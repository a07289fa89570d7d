"""Responses of the device routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.devices.token_schemas import RefusedOut
from tuner.program.calibration import Calibration
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


class LevelOut(BaseModel):
    """A cache or memory, read by all threads together."""

    name: str = Field(description="`L1`, `L2`, `L3` or `memory`")
    bytes: int = Field(description="what was read again and again")
    bytes_per_s: float


class LevelsOut(BaseModel):
    """What reading and multiply-adds in registers reach at best."""

    flops_per_s: float
    levels: list[LevelOut]


class CalibrationOut(BaseModel):
    """What was measured of a device for the theory of searches, for one target and number of threads."""

    version: int
    threads: int
    target: str
    rates: dict[str, float]
    levels: LevelsOut | None = Field(description="null where the device could not tell")
    probes: int = Field(description="measurements that the rates were fitted to")
    error_before: float = Field(description="median error of theory by typical rates, as a share of the time")
    error_after: float = Field(description="the same by rates that were fitted to other layers")
    seconds: float
    at: str

    @staticmethod
    def of(calibration: Calibration) -> CalibrationOut:
        return CalibrationOut.model_validate(calibration.to_json())


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
    calibrations: list[CalibrationOut] = Field(description="the newest last")
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
            calibrations=[CalibrationOut.of(each) for each in device.calibrations],
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
