"""API keys, what they allow, and the one-time tokens that a browser exchanges for one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from secrets import token_urlsafe
from typing import Any, Protocol

from tuner.errors import InvalidInput


class Scope(StrEnum):
    """What a key allows. Each includes the ones before it."""

    READ = "read"
    """Looking at everything: jobs, trials, kernels, libraries, devices."""
    SUBMIT = "submit"
    """Submitting jobs, and cancelling and resuming those of the key's owner."""
    PROMOTE = "promote"
    """What is served under a name: who builds by ``production`` runs what a key of this scope chose."""
    ADMIN = "admin"
    """Everybody's jobs, priorities above 0, the audit trail."""

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Quota:
    """What the jobs of a key's owner may use together; None: no limit.

    ``open_jobs``: jobs that have not ended. ``trials`` and ``seconds`` (of search): what jobs that ended within the
    last 24 hours used, and what open ones may use by their budgets.
    """

    open_jobs: int | None = None
    trials: int | None = None
    seconds: float | None = None

    @property
    def unlimited(self) -> bool:
        return self == NO_QUOTA

    def to_json(self) -> dict[str, Any] | None:
        given = {name: getattr(self, name) for name in QUOTAS if getattr(self, name) is not None}
        return given or None

    @staticmethod
    def from_json(data: dict[str, Any] | None) -> Quota:
        return Quota(**{name: value for name, value in (data or {}).items() if name in QUOTAS})


QUOTAS = ("open_jobs", "trials", "seconds")
NO_QUOTA = Quota()
EVERY_SCOPE = tuple(Scope)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key. ``owner``: whose jobs it submits, several keys may have the same; the key's id if none was named.

    ``last_used_at`` may be a minute old.
    """

    id: str
    name: str
    created_at: str
    revoked_at: str | None
    scopes: tuple[Scope, ...] = EVERY_SCOPE
    owner: str = ""
    expires_at: str | None = None
    last_used_at: str | None = None
    quota: Quota = NO_QUOTA

    def allows(self, needed: Scope) -> bool:
        return any(scope.includes(needed) for scope in self.scopes)


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is made with. ``ttl_s``: seconds until it expires, None: never."""

    scopes: tuple[Scope, ...] = EVERY_SCOPE
    owner: str = ""
    ttl_s: float | None = None
    quota: Quota = NO_QUOTA


PREFIX = "sw_"
RANDOM_CHARACTERS = 43
"""Characters of 32 random bytes in base64."""


def fresh_secret() -> str:
    return PREFIX + token_urlsafe(32)


def is_unguessable(secret: str) -> bool:
    """Whether it has the form of a secret, or of a link's token, that this package makes of random bytes. Secrets that
    somebody chose may be short."""
    return len(secret.removeprefix(PREFIX)) >= RANDOM_CHARACTERS


def parse_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    """Raises InvalidInput on field ``scope``."""
    known = {scope.value: scope for scope in Scope}
    wanted = set(names)
    if not wanted or (unknown := sorted(wanted - known.keys())):
        what = f"{unknown[0]!r} is not a scope" if wanted else "no scope is named"
        raise InvalidInput("scope", what, f"one of: {', '.join(known)}")
    return tuple(scope for scope in Scope if scope.value in wanted)


def hash_of(secret: str) -> str:
    """What is stored of a secret, and looked up."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class AccessStorage(Protocol):
    """Creating, finding and revoking API keys and one-time login tokens. ``actor`` is who the audit trail names."""

    def create_key(
        self, name: str, secret: str | None = None, made: NewKey = NewKey(), actor: str = ""
    ) -> tuple[ApiKey, str]:
        """A new API key and its secret, shown this once: only a hash is stored. Names need not be unique."""

    def list_keys(self) -> tuple[ApiKey, ...]: ...

    def revoke_key(self, key_id: str, actor: str = "") -> ApiKey:
        """Raises NotFound."""

    def find_key(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is unknown, revoked or expired."""

    def touch_keys(self, key_ids: Iterable[str], every_s: float) -> None:
        """Note that these keys were used now; those whose last use is not ``every_s`` seconds old stay as they are."""

    def create_login(self, name: str, ttl_s: float) -> str:
        """A one-time token, 256 random bits, good for ``ttl_s`` seconds; shown this once: only a hash is stored.

        ``name`` is what the key will be called that ``redeem_login`` makes of it.
        """

    def redeem_login(self, token: str, key_ttl_s: float | None = None) -> tuple[ApiKey, str] | None:
        """Use a token up: a new API key of every scope, which expires after ``key_ttl_s``, and its secret.

        None if the token is unknown, was used before, or has expired. Of several callers at once exactly one gets a
        key.
        """

    def end_login(self, key_id: str) -> bool:
        """Revoke a key that ``redeem_login`` made; False, and nothing changed, if this key was made otherwise."""
