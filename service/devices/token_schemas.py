"""Requests and responses of the routes of join tokens, and the devices that were refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from service.schemas import FromAttributes
from tuner.storage import TokenState
from tuner.storage.device_tokens import DEFAULT_TOKEN_S, LONGEST_TOKEN_S, MAX_KEY, MAX_NOTE, SHORTEST_TOKEN_S


class DeviceTokenIn(BaseModel):
    """What a token is made with."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=MAX_KEY, description="the tracker key of the devices that it is for")
    expires_s: float = Field(DEFAULT_TOKEN_S, ge=SHORTEST_TOKEN_S, le=LONGEST_TOKEN_S, description="seconds from now")
    note: str = Field("", max_length=MAX_NOTE, description="shown in the list")


class DeviceTokenOut(FromAttributes):
    """A token, without what proves it. ``required``: since it was made, devices of its key need one."""

    id: str
    key: str
    note: str
    state: TokenState = Field(description="`expired`: nobody joins by it, who has joined stays; `revoked`: nor that")
    created_at: str
    expires_at: str
    revoked_at: str | None
    last_used_at: str | None = Field(description="when a device that joined by it was last there; null: none has")
    required: bool


class DeviceTokenCreated(DeviceTokenOut):
    """A new token, with its text."""

    token: str


class DeviceTokenList(BaseModel):
    """The newest thousand tokens, newest first."""

    items: list[DeviceTokenOut]


class RefusedOut(FromAttributes):
    """A device that a worker refused in the last ten minutes. Its id and key are what it claims."""

    id: str
    key: str
    address: str
    reason: str
    first_at: str
    seen_at: str
