"""Join tokens of devices, and the devices that were refused for want of one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.errors import MAX_SHOWN, InvalidInput

SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 60.0, 366 * 86400.0
DEFAULT_TOKEN_S = 90 * 86400.0
MAX_KEY = 200
MAX_NOTE = 200
MAX_VALID = 1000
"""Tokens that are neither expired nor revoked."""
REFUSED_FOR_S = 600.0
"""A device that was last refused longer ago is not shown any more."""
MAX_REFUSED = 200
"""Refused devices that are kept: whoever reaches the tracker can make up any number."""


class TokenState(StrEnum):
    """EXPIRED: no further process joins by it; those that have joined stay. REVOKED: nobody is a device by it."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class DeviceToken:
    """A token by which devices of one tracker key join. ``last_used_at`` may be a minute old.

    ``required``: since it was made, devices of that key need a token; not so for those that `up` makes for itself.
    """

    id: str
    key: str
    note: str
    state: TokenState
    created_at: str
    expires_at: str
    revoked_at: str | None
    last_used_at: str | None
    required: bool


@dataclass(frozen=True, slots=True)
class JoinKey:
    """A token as workers need it. ``stored_key`` checks proofs (tuner.device_auth)."""

    token: DeviceToken
    stored_key: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The token by which a device joined, and which process of it (tuner.device_auth.Claim.server)."""

    token_id: str
    server: str


@dataclass(frozen=True, slots=True)
class RefusedDevice:
    """What a worker refused: the id and key that it claimed, where it was (``host:port``), and why, since when."""

    id: str
    key: str
    address: str
    reason: str
    first_at: str
    seen_at: str


def checked_token(key: str, ttl_s: float, note: str) -> None:
    """Raises InvalidInput on field ``key``, ``expires_s`` or ``note``."""
    if not 0 < len(key) <= MAX_KEY or not key.isprintable() or key != key.strip():
        remedy = f"the key that the device is served under, at most {MAX_KEY} printable characters"
        raise InvalidInput("key", f"{key[:MAX_SHOWN]!r} is not a device key", remedy)
    if not SHORTEST_TOKEN_S <= ttl_s <= LONGEST_TOKEN_S:
        remedy = f"from {SHORTEST_TOKEN_S:g} s to {LONGEST_TOKEN_S / 86400:g} days"
        raise InvalidInput("expires_s", f"{ttl_s:g} s is not how long a token lasts", remedy)
    if len(note) > MAX_NOTE or (note and not note.isprintable()):
        raise InvalidInput("note", "it will not do", f"at most {MAX_NOTE} printable characters")
