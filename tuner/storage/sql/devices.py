"""Devices that have registered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Select, and_, case, or_, select, update

from tuner.device_speed import DeviceSpeed, SpeedState
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.program.target.calibration import Calibration
from tuner.storage.device_tokens import Joined
from tuner.storage.devices import (
    FIRST_QUARANTINE_S,
    LONGEST_QUARANTINE_S,
    MAX_CALIBRATIONS,
    QUARANTINE_AFTER,
    Device,
    DeviceState,
)
from tuner.storage.errors import CorruptData, NotFound, reading
from tuner.storage.sql._rows import AnyRow, Part, insert_new, readable
from tuner.storage.sql.audit import WORKER, audit
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.device_tokens import note_use
from tuner.storage.sql.jobs import target_ids
from tuner.storage.sql.schema import devices, targets

MAX_REASON = 1000
DOUBLINGS = 16
GOOD: Mapping[str, Any] = {"state": DeviceState.READY.value, "failures": 0, "reason": "", "quarantined_until": None}

_log = logging.getLogger(__name__)


class Devices(Part):
    def register_device(
        self, device_id: str, key: str, target: Target, description: JsonObject, joined: Joined | None = None
    ) -> Device:
        """Add a device, or renew the one of that id (its target may have changed); ``seen_at`` becomes now.

        A device starts out READY; registering again leaves its state as it is. ``joined`` is kept until it changes,
        and its token was used now.
        """
        with self._database.write() as connection:
            known = target_ids(connection, [target])
            values = {"key": key, "target_id": known[target.fingerprint], "description": description}
            if joined is not None:
                values |= {"token_id": joined.token_id, "server": joined.server}
                note_use(connection, joined.token_id)
            before = connection.execute(select_devices().where(devices.c.id == device_id)).one_or_none()
            if before is None or (before.key, before.target_id) != (key, values["target_id"]):
                change = {"key": key, "target": target.fingerprint}
                audit(connection, WORKER, "device.register" if before is None else "device.change", device_id, change)
            if insert_new(connection, devices, [{"id": device_id, "state": DeviceState.READY.value, **values}]) == 0:
                connection.execute(update(devices).where(devices.c.id == device_id).values(seen_at=now(), **values))
            return device_of(connection.execute(select_devices().where(devices.c.id == device_id)).one())

    def list_devices(self) -> tuple[Device, ...]:
        """All devices, in order of key and id."""
        with self._database.read() as connection:
            rows = connection.execute(select_devices().order_by(devices.c.key, devices.c.id)).all()
        return tuple(readable("device", device_of, rows))

    def device_failed(self, device_id: str, reason: str) -> Device:
        """Count a failure: after QUARANTINE_AFTER in a row the device is quarantined for a while. Raises NotFound."""
        with self._database.write() as connection:
            device = _locked(connection, device_id)
            failures = device.failures + 1
            if device.state is DeviceState.QUARANTINED and device.quarantined_until is None:
                # By somebody, for a reason that stays.
                return _changed(connection, device_id, {"failures": failures})
            changed: JsonObject = {"failures": failures, "reason": reason[-MAX_REASON:]}
            if failures >= QUARANTINE_AFTER:
                wait_s = FIRST_QUARANTINE_S * 2.0 ** min(failures - QUARANTINE_AFTER, DOUBLINGS)
                wait_s = min(wait_s, LONGEST_QUARANTINE_S)
                detail = {"reason": changed["reason"], "failures": failures, "wait_s": wait_s}
                audit(connection, WORKER, "device.quarantine", device_id, detail)
                changed |= {"state": DeviceState.QUARANTINED.value, "quarantined_until": later(wait_s)}
            return _changed(connection, device_id, changed)

    def device_worked(self, device_id: str) -> None:
        """Forget its failures. One that somebody quarantined stays so."""
        by_itself = or_(devices.c.state == DeviceState.READY.value, devices.c.quarantined_until.is_not(None))
        failing = update(devices).where(devices.c.id == device_id, devices.c.failures > 0, by_itself)
        with self._database.write() as connection:
            connection.execute(failing.values(**GOOD))

    def device_speed(self, device_id: str, speed: DeviceSpeed) -> None:
        """Keep how fast it is. A change of its state is in the audit trail. Nothing happens for an unknown device."""
        with self._database.write() as connection:
            before = connection.execute(select_devices().where(devices.c.id == device_id)).one_or_none()
            if before is None:
                return
            state_before = SpeedState.STEADY.value if before.speed is None else before.speed["state"]
            if state_before != speed.state.value:
                detail = {"speed": speed.state.value, "was": state_before, "slowdown": round(speed.slowdown, 3)}
                audit(connection, WORKER, "device.speed", device_id, detail)
            connection.execute(update(devices).where(devices.c.id == device_id).values(speed=speed.to_json()))

    def device_calibrated(self, device_id: str, calibration: Calibration) -> None:
        """Keep a calibration in place of an earlier one for the same target and threads, MAX_CALIBRATIONS in all.

        Nothing happens for an unknown device.
        """
        mine = devices.c.id == device_id
        with self._database.write() as connection:
            before = connection.execute(select(devices.c.calibrations).where(mine).with_for_update()).one_or_none()
            if before is None:
                return
            data = calibration.to_json()
            # Those that only a later version can read are kept for it.
            others = [each for each in before.calibrations or () if _what_for(each) != _what_for(data)]
            kept = [*others, data][-MAX_CALIBRATIONS:]
            connection.execute(update(devices).where(mine).values(calibrations=kept))

    def quarantine_device(self, device_id: str, reason: str, actor: str) -> Device:
        """Give it no more work until it is released. Raises NotFound."""
        changed = {"state": DeviceState.QUARANTINED.value, "quarantined_until": None, "reason": reason[-MAX_REASON:]}
        with self._database.write() as connection:
            _locked(connection, device_id)
            audit(connection, actor, "device.quarantine", device_id, {"reason": changed["reason"]})
            return _changed(connection, device_id, changed)

    def release_device(self, device_id: str, actor: str) -> Device:
        """End its quarantine and forget its failures. Raises NotFound."""
        with self._database.write() as connection:
            _locked(connection, device_id)
            audit(connection, actor, "device.release", device_id, {})
            return _changed(connection, device_id, GOOD)


def select_devices() -> Select[Any]:
    """Devices with their targets, and how each ``stands`` by the database's clock."""
    until = devices.c.quarantined_until
    was_quarantined = devices.c.state == DeviceState.QUARANTINED.value
    is_quarantined = and_(was_quarantined, or_(until.is_(None), until > now()))
    stands = case(
        (is_quarantined, DeviceState.QUARANTINED.value),
        (was_quarantined, DeviceState.PROBATION.value),
        else_=DeviceState.READY.value,
    )
    return select(devices, targets.c.target, stands.label("stands")).join(targets, targets.c.id == devices.c.target_id)


def _locked(connection: Connection, device_id: str) -> Device:
    """Raises NotFound."""
    query = select_devices().where(devices.c.id == device_id).with_for_update(of=devices)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"no device {device_id!r}")
    return device_of(row)


def _changed(connection: Connection, device_id: str, values: Mapping[str, Any]) -> Device:
    connection.execute(update(devices).where(devices.c.id == device_id).values(**values))
    return device_of(connection.execute(select_devices().where(devices.c.id == device_id)).one())


def _what_for(calibration: JsonObject) -> tuple[Any, ...]:
    return tuple(calibration.get(name) for name in ("target", "threads"))


def _calibrations(stored: Sequence[JsonObject] | None) -> Iterator[Calibration]:
    """The calibrations that can be read. Any other is made again."""
    for each in stored or ():
        with suppress(KeyError, TypeError, ValueError):
            yield Calibration.from_json(each)


def _speed(row: AnyRow) -> DeviceSpeed | None:
    """None, as before its first job, if it cannot be read: it is measured again."""
    try:
        with reading(f"the speed of device {row.id}", row.speed):
            return None if row.speed is None else DeviceSpeed.from_json(row.speed)
    except CorruptData as error:
        _log.error("%s", error)
        return None


def target_of(row: AnyRow) -> Target:
    """The target of a row that has one as ``target``. Raises CorruptData."""
    with reading(f"the target of row {row.id}", row.target):
        return Target.from_json(row.target)


def device_of(row: AnyRow) -> Device:
    with reading(f"the target of device {row.id}", row.target):
        target = Target.from_json(row.target)
    return Device(
        id=row.id,
        key=row.key,
        target=target,
        state=DeviceState(row.stands),
        description=row.description,
        registered_at=row.registered_at,
        seen_at=row.seen_at,
        failures=row.failures,
        reason=row.reason,
        quarantined_until=row.quarantined_until,
        speed=_speed(row),
        joined=None if row.token_id is None else Joined(row.token_id, row.server),
        calibrations=tuple(_calibrations(row.calibrations)),
    )
