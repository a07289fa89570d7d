"""API keys and what they allow, and the audit trail: who did what, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from secrets import token_urlsafe
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.language.workload import JsonObject


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


MAX_NAME = 200
"""Characters of a key's name, and of an owner's."""


def check_names(name: str, owner: str) -> None:
    """What a key is called, and whose it is. Raises InvalidInput on fields ``name`` and ``owner``."""
    if not name.strip() or len(name) > MAX_NAME:
        what = "is too long" if name.strip() else "is empty"
        raise InvalidInput("name", what, "a name that identifies this key, as in: shapewright keys create ci")
    if len(owner) > MAX_NAME or not owner.isprintable() or owner != owner.strip():
        raise InvalidInput("owner", f"{owner[:40]!r} will not do", f"at most {MAX_NAME} printable characters")


PREFIX = "sw_"
"""Lets people, and scanners for leaked secrets, see what they have before them."""
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


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action, stored in the transaction that carried it out.

    ``actor`` is the id of an API key, ``worker``, or ``cli USER`` for a command with the database at hand; empty is not
    known. ``action`` is a noun and a verb, ``job.cancel``; ``subject`` is the id of what was changed.
    """

    id: int
    at: str
    actor: str
    action: str
    subject: str
    detail: JsonObject
