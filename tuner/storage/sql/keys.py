"""API keys, and one-time tokens: who brings one gets a key of their own, once. Secrets are shown once, and stored as
hashes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, delete, exists, insert, or_, select, update

from tuner.storage.access import NO_QUOTA, ApiKey, NewKey, Quota, Scope, fresh_secret, hash_of
from tuner.storage.errors import Conflict, CorruptData, NotFound, reading
from tuner.storage.sql._rows import AnyRow, Part, insert_new
from tuner.storage.sql.audit import audit
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.quotas import QuotaUse, use_of
from tuner.storage.sql.schema import api_keys, login_tokens

_log = logging.getLogger(__name__)

EVERY_SCOPE = NewKey()

_VALID = select(api_keys).where(
    api_keys.c.secret_sha256 == bindparam("hash"),
    api_keys.c.revoked_at.is_(None),
    or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now()),
)


class Keys(Part):
    def create_key(
        self, name: str, secret: str | None = None, made: NewKey = EVERY_SCOPE, actor: str = ""
    ) -> tuple[ApiKey, str]:
        """A new API key and its secret, shown this once: only a hash is stored. Names need not be unique.

        ``actor`` is who the audit trail names. Raises Conflict if the given secret is that of another key, revoked
        ones included.
        """
        secret = secret if secret is not None else fresh_secret()
        with self._database.write() as connection:
            return add_key(connection, name, secret, made, actor), secret

    def list_keys(self) -> tuple[ApiKey, ...]:
        """All keys in the order of their creation, revoked ones included."""
        with self._database.read() as connection:
            return tuple(map(_key_of, connection.execute(select(api_keys).order_by(api_keys.c.number))))

    def quota_uses(self, owners: Iterable[str]) -> dict[str, QuotaUse]:
        """What counts against the quotas of keys of these owners at present."""
        with self._database.read() as connection:
            return {owner: use_of(connection, owner) for owner in sorted(set(owners))}

    def revoke_key(self, key_id: str, actor: str = "") -> ApiKey:
        """A key that was revoked before keeps the time of the first. Raises NotFound."""
        with self._database.write() as connection:
            mark_revoked(connection, key_id, actor)
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
        if row is None:
            raise NotFound(f"no API key {key_id!r}")
        return _key_of(row)

    def find_key(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is unknown, revoked or expired."""
        with self._database.read() as connection:
            row = connection.execute(_VALID, {"hash": hash_of(secret)}).one_or_none()
        return None if row is None else _key_of(row)

    def touch_keys(self, key_ids: Iterable[str], every_s: float) -> None:
        """Note that these keys were used now; those whose last use is not ``every_s`` seconds old stay as they are."""
        used = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < later(-every_s))
        # In one order, so that two processes that note the same keys wait for each other in turn.
        with self._database.write() as connection:
            for key_id in sorted(set(key_ids)):
                connection.execute(update(api_keys).where(api_keys.c.id == key_id, used).values(last_used_at=now()))


def add_key(connection: Connection, name: str, secret: str, made: NewKey, actor: str) -> ApiKey:
    """Raises Conflict if the secret is that of another key."""
    key_id = f"key-{secrets.token_hex(6)}"
    row = {
        "id": key_id,
        "name": name,
        "secret_sha256": hash_of(secret),
        "scopes": [scope.value for scope in made.scopes],
        "owner": made.owner,
        "quota": made.quota.to_json(),
    }
    if insert_new(connection, api_keys, [row]) == 0:
        raise Conflict("secret: a key with this secret exists already; leave it out to get a fresh one")
    if made.ttl_s is not None:
        connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(expires_at=later(made.ttl_s)))
    key = _key_of(connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one())
    detail = {"name": name, "scopes": row["scopes"], "owner": key.owner, "expires_at": key.expires_at}
    audit(connection, actor, "key.create", key_id, detail | {"quota": row["quota"]})
    return key


def mark_revoked(connection: Connection, key_id: str, actor: str) -> None:
    """The time of a first revocation stays."""
    fresh = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
    name = connection.scalar(fresh.values(revoked_at=now()).returning(api_keys.c.name))
    if name is not None:
        audit(connection, actor, "key.revoke", key_id, {"name": name})


def lock_owner(connection: Connection, owner: str) -> None:
    """Hold the keys of an owner until this transaction ends: whoever counts against their quota comes one at a time."""
    # SQLite knows no row locks and needs none: its writers come one at a time.
    same = or_(api_keys.c.owner == owner, api_keys.c.id == owner)
    connection.execute(select(api_keys.c.number).where(same).order_by(api_keys.c.number).with_for_update()).all()


def _key_of(row: AnyRow) -> ApiKey:
    """A key whose scopes or quota cannot be read may do nothing."""
    scopes: tuple[Scope, ...] = ()
    quota = NO_QUOTA
    try:
        with reading(f"what key {row.id} may do", row.scopes, row.quota):
            quota = Quota.from_json(row.quota)
            scopes = tuple(scope for scope in Scope if scope.value in row.scopes)
    except CorruptData as error:
        _log.error("%s", error)
    return ApiKey(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        scopes=scopes,
        owner=row.owner or row.id,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        quota=quota,
    )


LOGIN = "login"
"""Who the audit trail names for the key that a token becomes."""


class Logins(Part):
    def create_login(self, name: str, ttl_s: float) -> str:
        """A one-time token, 256 random bits, good for ``ttl_s`` seconds; shown this once: only a hash is stored.

        ``name`` is what the key will be called that ``redeem_login`` makes of it.
        """
        token = secrets.token_urlsafe(32)
        row = insert(login_tokens).values(secret_sha256=hash_of(token), name=name, expires_at=later(ttl_s))
        with self._database.write() as connection:
            _forget_expired(connection)
            connection.execute(row)
        return token

    def redeem_login(self, token: str, key_ttl_s: float | None = None) -> tuple[ApiKey, str] | None:
        """Use a token up: a new API key of every scope, which expires after ``key_ttl_s``, and its secret.

        None if the token is unknown, was used before, or has expired. Of several callers at once exactly one gets a
        key.
        """
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
        """Revoke a key that ``redeem_login`` made; False, and nothing changed, if this key was made otherwise."""
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
