"""Join tokens of devices, and the devices that were refused. A token is shown once; what is kept checks its proofs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, and_, case, delete, func, insert, not_, or_, select, update

from tuner.device_auth import new_token, stored_key_of
from tuner.storage.device_tokens import (
    MAX_REFUSED,
    MAX_VALID,
    REFUSED_FOR_S,
    DeviceToken,
    JoinKey,
    RefusedDevice,
    TokenState,
)
from tuner.storage.errors import Conflict, NotFound
from tuner.storage.sql._rows import AnyRow, Part, insert_new
from tuner.storage.sql.audit import audit
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.schema import device_tokens, refused_devices

MAX_LISTED = 1000
MAX_REASON = 1000
MAX_NAME = 200
USE_EVERY_S = 60.0
"""How often the last use of a token is written at most."""
TIDY_S = 86400.0


class DeviceTokens(Part):
    def create_device_token(
        self, key: str, ttl_s: float, note: str = "", actor: str = "", required: bool = True
    ) -> tuple[DeviceToken, str]:
        """A new token and its text, shown this once. Raises Conflict where MAX_VALID are valid."""
        token_id, text = new_token()
        row = {"id": token_id, "key": key, "note": note, "stored_key": stored_key_of(text), "required": required}
        with self._database.write() as connection:
            # What closes no key is not needed any more.
            connection.execute(delete(device_tokens).where(device_tokens.c.required.is_(False), not_(_is_valid())))
            valid = select(func.count()).select_from(device_tokens).where(_is_valid())
            if (connection.scalar(valid) or 0) >= MAX_VALID:
                raise Conflict(f"there are {MAX_VALID} valid tokens: revoke those that are not used any more")
            connection.execute(insert(device_tokens).values(expires_at=later(ttl_s), **row))
            token = _token(connection, token_id)
            detail = {"key": key, "note": note, "expires_at": token.expires_at}
            audit(connection, actor, "device-token.create", token_id, detail)
        return token, text

    def list_device_tokens(self) -> tuple[DeviceToken, ...]:
        """The newest thousand, newest first, revoked ones included."""
        query = _select().order_by(device_tokens.c.number.desc()).limit(MAX_LISTED)
        with self._database.read() as connection:
            return tuple(map(_token_of, connection.execute(query)))

    def revoke_device_token(self, token_id: str, actor: str = "") -> DeviceToken:
        """One that was revoked before keeps the time of the first. Raises NotFound."""
        fresh = update(device_tokens).where(device_tokens.c.id == token_id, device_tokens.c.revoked_at.is_(None))
        with self._database.write() as connection:
            key = connection.scalar(fresh.values(revoked_at=now()).returning(device_tokens.c.key))
            if key is not None:
                audit(connection, actor, "device-token.revoke", token_id, {"key": key})
            return _token(connection, token_id)

    def join_keys(self) -> tuple[JoinKey, ...]:
        """Every token there ever was: a key that had one stays closed to devices without."""
        with self._database.read() as connection:
            return tuple(JoinKey(_token_of(row), row.stored_key) for row in connection.execute(_select()))

    def refuse_device(self, device_id: str, key: str, address: str, reason: str) -> None:
        """Note that a device was refused now."""
        # Not in the audit trail, which nothing bounds: whoever reaches the tracker is refused as often as it likes.
        told = {"key": key[:MAX_NAME], "reason": reason[:MAX_REASON]}
        row = {"id": device_id[:MAX_NAME], "address": address, **told}
        with self._database.write() as connection:
            same = and_(refused_devices.c.id == row["id"], refused_devices.c.address == address)
            if insert_new(connection, refused_devices, [row]) == 0:
                connection.execute(update(refused_devices).where(same).values(seen_at=now(), **told))
            _forget_old(connection)

    def accept_device(self, device_id: str, address: str) -> None:
        """Forget that it was refused."""
        same = and_(refused_devices.c.id == device_id[:MAX_NAME], refused_devices.c.address == address)
        with self._database.write() as connection:
            connection.execute(delete(refused_devices).where(same))

    def list_refused_devices(self) -> tuple[RefusedDevice, ...]:
        """The devices that were refused in the last REFUSED_FOR_S, by key and id."""
        table = refused_devices.c
        query = select(refused_devices).where(table.seen_at > later(-REFUSED_FOR_S))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(table.key, table.id, table.address)).all()
        return tuple(RefusedDevice(row.id, row.key, row.address, row.reason, row.first_at, row.seen_at) for row in rows)


def note_use(connection: Connection, token_id: str) -> None:
    """Note that devices joined, or are there, by a token."""
    used = or_(device_tokens.c.last_used_at.is_(None), device_tokens.c.last_used_at < later(-USE_EVERY_S))
    connection.execute(update(device_tokens).where(device_tokens.c.id == token_id, used).values(last_used_at=now()))


def _is_valid() -> Any:
    return and_(device_tokens.c.revoked_at.is_(None), device_tokens.c.expires_at > now())


def _select() -> Select[Any]:
    """Tokens, and how each ``stands`` by the database's clock."""
    stands = case(
        (device_tokens.c.revoked_at.is_not(None), TokenState.REVOKED.value),
        (device_tokens.c.expires_at <= now(), TokenState.EXPIRED.value),
        else_=TokenState.VALID.value,
    )
    return select(device_tokens, stands.label("stands"))


def _token(connection: Connection, token_id: str) -> DeviceToken:
    """Raises NotFound."""
    row = connection.execute(_select().where(device_tokens.c.id == token_id)).one_or_none()
    if row is None:
        raise NotFound(f"no device token {token_id!r}")
    return _token_of(row)


def _forget_old(connection: Connection) -> None:
    """Refusals of yesterday, and the oldest beyond MAX_REFUSED."""
    connection.execute(delete(refused_devices).where(refused_devices.c.seen_at < later(-TIDY_S)))
    newer = refused_devices.alias()
    kept = select(newer.c.seen_at).order_by(newer.c.seen_at.desc()).offset(MAX_REFUSED - 1).limit(1).scalar_subquery()
    connection.execute(delete(refused_devices).where(refused_devices.c.seen_at < kept))


def _token_of(row: AnyRow) -> DeviceToken:
    return DeviceToken(
        id=row.id,
        key=row.key,
        note=row.note,
        state=TokenState(row.stands),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        required=row.required,
    )
