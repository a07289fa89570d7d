"""Devices that have registered."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Select, select, update

from tuner.program.target import Target
from tuner.program.workload import JsonObject
from tuner.storage.devices import Device
from tuner.storage.errors import CorruptData, reading
from tuner.storage.sql._rows import AnyRow, Part, insert_new
from tuner.storage.sql.audit import WORKER, audit
from tuner.storage.sql.columns import now
from tuner.storage.sql.jobs import target_ids
from tuner.storage.sql.schema import devices, targets

READY = "ready"

_log = logging.getLogger(__name__)


class Devices(Part):
    def register_device(self, device_id: str, key: str, target: Target, description: JsonObject) -> Device:
        """A device starts out ``ready``; registering again leaves its state as it is."""
        with self._database.write() as connection:
            known = target_ids(connection, [target])
            values = {"key": key, "target_id": known[target.fingerprint], "description": description}
            before = connection.execute(_select().where(devices.c.id == device_id)).one_or_none()
            if before is None or (before.key, before.target_id) != (key, values["target_id"]):
                change = {"key": key, "target": target.fingerprint}
                audit(connection, WORKER, "device.register" if before is None else "device.change", device_id, change)
            if insert_new(connection, devices, [{"id": device_id, "state": READY, **values}]) == 0:
                connection.execute(update(devices).where(devices.c.id == device_id).values(seen_at=now(), **values))
            return _device_of(connection.execute(_select().where(devices.c.id == device_id)).one())

    def list_devices(self) -> tuple[Device, ...]:
        with self._database.read() as connection:
            rows = connection.execute(_select().order_by(devices.c.key, devices.c.id)).all()
        return tuple(device for row in rows if (device := _readable(row)) is not None)

    def list_targets(self) -> tuple[Target, ...]:
        with self._database.read() as connection:
            return tuple(map(Target.from_json, connection.scalars(select(targets.c.target).order_by(targets.c.id))))


def _select() -> Select[Any]:
    return select(devices, targets.c.target).join(targets, targets.c.id == devices.c.target_id)


def _readable(row: AnyRow) -> Device | None:
    """None, and an error in the log, for a row that is corrupt: it must not keep every job from every other device."""
    try:
        return _device_of(row)
    except CorruptData as error:
        _log.error("device %s is left out: %s", row.id, error)
        return None


def _device_of(row: AnyRow) -> Device:
    with reading(f"the target of device {row.id}"):
        target = Target.from_json(row.target)
    return Device(
        id=row.id,
        key=row.key,
        target=target,
        state=row.state,
        description=row.description,
        registered_at=row.registered_at,
        seen_at=row.seen_at,
    )
