"""API keys, and the one-time tokens that a browser exchanges for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    created_at: str
    revoked_at: str | None


class AccessStorage(Protocol):
    """Creating, finding and revoking API keys and one-time login tokens."""

    def create_key(self, name: str, secret: str | None = None) -> tuple[ApiKey, str]:
        """A new API key and its secret, shown this once: only a hash is stored. Names need not be unique."""

    def list_keys(self) -> tuple[ApiKey, ...]: ...

    def revoke_key(self, key_id: str) -> ApiKey:
        """Raises NotFound."""

    def find_key(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is unknown or revoked."""

    def create_login(self, name: str, ttl_s: float) -> str:
        """A one-time token, 256 random bits, good for ``ttl_s`` seconds; shown this once: only a hash is stored.

        ``name`` is what the key will be called that ``redeem_login`` makes of it.
        """

    def redeem_login(self, token: str) -> tuple[ApiKey, str] | None:
        """Use a token up: a new API key and its secret. None if it is unknown, was used before, or has expired.

        Of several callers at once exactly one gets a key.
        """

    def end_login(self, key_id: str) -> bool:
        """Revoke a key that ``redeem_login`` made; False, and nothing changed, if this key was made otherwise."""
