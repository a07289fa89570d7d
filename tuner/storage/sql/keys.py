"""API keys. A secret is shown once and stored as a hash."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, func, select, update

from tuner.storage.access import ApiKey
from tuner.storage.errors import Conflict, NotFound
from tuner.storage.sql._rows import AnyRow, Part, insert_new
from tuner.storage.sql.columns import now
from tuner.storage.sql.schema import api_keys

PREFIX = "sw_"
"""Lets people, and scanners for leaked secrets, see what they have before them."""


class Keys(Part):
    def create_key(self, name: str, secret: str | None = None) -> tuple[ApiKey, str]:
        """Raises Conflict if the given secret is that of another key, revoked ones included."""
        secret = secret if secret is not None else fresh_secret()
        with self._database.write() as connection:
            return add_key(connection, name, secret), secret

    def list_keys(self) -> tuple[ApiKey, ...]:
        """In the order of their creation, revoked ones included."""
        with self._database.read() as connection:
            return tuple(map(_key_of, connection.execute(select(api_keys).order_by(api_keys.c.number))))

    def revoke_key(self, key_id: str) -> ApiKey:
        """A key that was revoked before keeps the time of the first."""
        with self._database.write() as connection:
            mark_revoked(connection, key_id)
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
        if row is None:
            raise NotFound(f"no API key {key_id!r}")
        return _key_of(row)

    def find_key(self, secret: str) -> ApiKey | None:
        valid = select(api_keys).where(api_keys.c.secret_sha256 == hash_of(secret), api_keys.c.revoked_at.is_(None))
        with self._database.read() as connection:
            row = connection.execute(valid).one_or_none()
        return None if row is None else _key_of(row)


def fresh_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def add_key(connection: Connection, name: str, secret: str) -> ApiKey:
    """Raises Conflict if the secret is that of another key."""
    row = {"id": f"key-{secrets.token_hex(6)}", "name": name, "secret_sha256": hash_of(secret)}
    if insert_new(connection, api_keys, [row]) == 0:
        raise Conflict("secret: a key with this secret exists already; leave it out to get a fresh one")
    query = select(api_keys).where(api_keys.c.id == row["id"])
    return _key_of(connection.execute(query).one())


def mark_revoked(connection: Connection, key_id: str) -> None:
    """The time of a first revocation stays."""
    revoked = update(api_keys).where(api_keys.c.id == key_id)
    connection.execute(revoked.values(revoked_at=func.coalesce(api_keys.c.revoked_at, now())))


def hash_of(secret: str) -> str:
    """What is stored of a secret, and looked up."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _key_of(row: AnyRow) -> ApiKey:
    return ApiKey(id=row.id, name=row.name, created_at=row.created_at, revoked_at=row.revoked_at)
