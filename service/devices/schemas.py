"""Responses of the device routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from service.devices.token_schemas import RefusedOut
from service.schemas import AsJson, FromAttributes
from tuner.program.target.rates import Rates
from tuner.storage import DeviceState, SpeedState


class SpeedOut(FromAttributes):
    """What a fixed piece of work, which is timed beside every trial, takes the device."""

    state: SpeedState = Field(
        description="`throttled`: slower than usual; `noisy`: readings vary much. Both are asked less while others are "
        "there"
    )
    recent_s: float
    usual_s: float
    spread: float = Field(description="the width of the middle half of recent readings, by their median")


class LevelOut(FromAttributes):
    """A cache or memory, read by all threads together."""

    name: str = Field(description="`L1`, `L2`, `L3`, `memory` as one stream, or `streams`: memory as several at once")
    bytes: int = Field(description="what was read again and again")
    bytes_per_s: float


class LevelsOut(FromAttributes):
    """What reading and multiply-adds in registers reach at best."""

    flops_per_s: float
    levels: list[LevelOut]
    clock_hz: float | None = Field(description="null where the device could not tell")
    issued_per_s: dict[str, float] = Field(description="by instruction, of each thread")


class CalibrationOut(FromAttributes):
    """What was measured of a device for the theory of searches, for one target and number of threads."""

    version: int
    threads: int
    target: str
    rates: Annotated[dict[str, float | dict[str, float]], BeforeValidator(Rates.to_json)] = Field(
        description="of one core; `issue`: by instruction its time over that of a multiply-add, where it was measured"
    )
    levels: LevelsOut | None = Field(description="null where the device could not tell")
    probes: int = Field(description="measurements that the rates were fitted to")
    error_before: float = Field(description="median error of theory by typical rates, as a share of the time")
    error_after: float = Field(description="the same by rates that were fitted to other layers")
    seconds: float
    at: str


class DeviceOut(FromAttributes):
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
    token_id: Annotated[str | None, BeforeValidator(lambda joined: joined and joined.token_id)] = Field(
        validation_alias="joined", description="the token by which it last joined; null: it has needed none"
    )
    target_fingerprint: str = Field(validation_alias=AliasPath("target", "fingerprint"))
    target: AsJson
    description: dict[str, Any]
    registered_at: str
    seen_at: str


class DeviceList(BaseModel):
    """All devices, in order of key and id. ``refused``: those that lately wanted to be, and may not."""

    items: list[DeviceOut]
    refused: list[RefusedOut]


class QuarantineIn(BaseModel):
    """Why a device gets no more work."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=1000)
