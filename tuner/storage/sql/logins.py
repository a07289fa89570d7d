"""One-time tokens: who brings one gets an API key of their own, once. A token is stored as a hash, like a key."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, delete, exists, insert, select, update

from tuner.storage.access import ApiKey, NewKey, fresh_secret, hash_of
from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.keys import add_key, mark_revoked
from tuner.storage.sql.schema import login_tokens

LOGIN = "login"
"""Who the audit trail names for the key that a token becomes."""


class Logins(Part):
    def create_login(self, name: str, ttl_s: float) -> str:
        token = secrets.token_urlsafe(32)
        row = insert(login_tokens).values(secret_sha256=hash_of(token), name=name, expires_at=later(ttl_s))
        with self._database.write() as connection:
            _forget_expired(connection)
            connection.execute(row)
        return token

    def redeem_login(self, token: str, key_ttl_s: float | None = None) -> tuple[ApiKey, str] | None:
        # Read first: a made-up token must not take the turn of one who writes.
        known = select(login_tokens.c.id).where(login_tokens.c.secret_sha256 == hash_of(token))
        with self._database.read() as connection:
            if connection.scalar(known) is None:
                return None
        secret = fresh_secret()
        with self._database.write() as connection:
            used = _use(connection, token)
            if used is None:
                return None
            number, name = used
            key = add_key(connection, name, secret, NewKey(ttl_s=key_ttl_s), LOGIN)
            connection.execute(update(login_tokens).where(login_tokens.c.id == number).values(api_key_id=key.id))
        return key, secret

    def end_login(self, key_id: str) -> bool:
        redeemed = select(exists().where(login_tokens.c.api_key_id == key_id))
        with self._database.write() as connection:
            revoked = bool(connection.scalar(redeemed))
            if revoked:
                mark_revoked(connection, key_id, key_id)
        return revoked


def _use(connection: Connection, token: str) -> tuple[int, str] | None:
    """Mark a token as used, which one caller alone succeeds in; its row's number and name."""
    # On PostgreSQL a second caller waits here for the first one's row lock, and then no longer finds it unused.
    fresh = update(login_tokens).where(
        login_tokens.c.secret_sha256 == hash_of(token),
        login_tokens.c.used_at.is_(None),
        login_tokens.c.expires_at > now(),
    )
    used = fresh.values(used_at=now()).returning(login_tokens.c.id, login_tokens.c.name)
    row = connection.execute(used).one_or_none()
    return None if row is None else (row.id, row.name)


def _forget_expired(connection: Connection) -> None:
    """Expired tokens are deleted; used ones are kept, because they say which keys were made from them."""
    unused = login_tokens.c.used_at.is_(None)
    connection.execute(delete(login_tokens).where(unused, login_tokens.c.expires_at <= now()))
