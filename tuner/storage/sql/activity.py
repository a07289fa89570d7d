"""What devices were busy with lately. All of it reads tuning_records by its index of devices and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal, select

from tuner.records import TuningRecord
from tuner.storage.devices import ActiveJob, Activity, Device, DeviceReading, DeviceUse, Slot
from tuner.storage.errors import NotFound
from tuner.storage.jobs import JobState
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import WORKED_ON, Part
from tuner.storage.sql.columns import Instant, epoch_s, now, whole
from tuner.storage.sql.devices import device_of, select_devices
from tuner.storage.sql.record_rows import of_jobs, select_records
from tuner.storage.sql.schema import devices, jobs, search_tasks, tuning_records

NEWEST = 2000
"""The trials of a device that its failures are looked for in."""

_record = tuning_records.c
_SINCE = bindparam("since", type_=Instant())
# What the index is of.
_OURS = and_(_record.device.is_not(None), _record.search_task_id.is_not(None))
_NOW = select(epoch_s(now()))


def _slots() -> Select[Any]:
    # From the devices to their trials: a range of the index for each, whatever else the window holds.
    end_s = epoch_s(_record.created_at) - func.coalesce(_record.stored_after_s, 0.0)
    slot = whole(end_s / bindparam("slot_s"))
    return (
        select(
            devices.c.id.label("device"),
            _record.search_task_id.label("task"),
            func.min(end_s - _record.run_s).label("start_s"),
            func.max(end_s).label("end_s"),
            func.count().label("trials"),
            func.count(_record.error_kind).label("failed"),
            func.sum(_record.run_s).label("busy_s"),
        )
        .join(tuning_records, and_(_record.device == devices.c.id, _record.created_at >= _SINCE, _OURS))
        .group_by(devices.c.id, _record.search_task_id, slot)
    )


def _named(part: Select[Any]) -> Select[Any]:
    slots = part.subquery()
    return (
        select(slots, jobs.c.id.label("job_id"), jobs.c.number, jobs.c.name, jobs.c.state)
        .join(search_tasks, search_tasks.c.id == slots.c.task)
        .join(jobs, jobs.c.id == search_tasks.c.job_id)
        .order_by(slots.c.device, slots.c.start_s)
    )


_ALL_SLOTS = _named(_slots())
_OWN_SLOTS = _named(_slots().where(devices.c.id == bindparam("device")))
_USE = (
    select(
        devices.c.id,
        func.sum(_record.run_s).label("busy_s"),
        func.count().label("trials"),
        func.count(_record.error_kind).label("failed"),
    )
    .join(tuning_records, and_(_record.device == devices.c.id, _record.created_at >= _SINCE, _OURS))
    .group_by(devices.c.id)
)
_QUEUED = (
    select(jobs.c.device, jobs.c.state, func.count().label("jobs"))
    .where(jobs.c.state.in_((JobState.WAITING, *WORKED_ON)))
    .group_by(jobs.c.device, jobs.c.state)
)
_OF_DEVICE = (
    select(_record.id)
    .where(_record.device == bindparam("device"), _OURS)
    .order_by(_record.created_at.desc(), _record.id.desc())
    .limit(bindparam("count"))
)


class Activities(Part):
    def get_device(self, device_id: str) -> Device:
        """Raises NotFound."""
        with self._database.read() as connection:
            row = connection.execute(select_devices().where(devices.c.id == device_id)).one_or_none()
        if row is None:
            raise NotFound(f"no device {device_id!r}")
        return device_of(row)

    def device_activity(self, seconds: float, slot_s: float, device_id: str | None = None) -> Activity:
        """The last ``seconds`` in slots of ``slot_s``: of one device or of all that are registered."""
        with self._database.read() as connection:
            now_s, since = _window(connection, seconds)
            query, asked = (_ALL_SLOTS, {}) if device_id is None else (_OWN_SLOTS, {"device": device_id})
            rows = connection.execute(query, {"since": since, "slot_s": slot_s, **asked}).all()
        slots = tuple(
            Slot(row.device, row.job_id, row.start_s, row.end_s, row.trials, row.failed, row.busy_s) for row in rows
        )
        found = {row.job_id: ActiveJob(row.job_id, row.number, row.name, JobState(row.state)) for row in rows}
        return Activity(now_s, slots, found)

    def device_use(self, seconds: float) -> Mapping[str, DeviceUse]:
        """The use of each device that measured anything in the last ``seconds``, by device."""
        with self._database.read() as connection:
            _, since = _window(connection, seconds)
            rows = connection.execute(_USE, {"since": since}).all()
        return {row.id: DeviceUse(row.busy_s, row.trials, row.failed) for row in rows}

    def queue_counts(self) -> Mapping[str, Mapping[JobState, int]]:
        """The number of jobs that wait or are worked on, by device key and state."""
        result: dict[str, dict[JobState, int]] = {}
        with self._database.read() as connection:
            for row in connection.execute(_QUEUED):
                result.setdefault(row.device, {})[JobState(row.state)] = row.jobs
        return result

    def newest_trials(self, device_id: str, limit: int = 20, failed: bool = False) -> tuple[TuningRecord, ...]:
        """The newest trials of a device, or the failed ones among its newest few thousand; newest first."""
        asked = {"device": device_id, "count": NEWEST if failed else cursors.checked(limit)}
        wanted: list[ColumnElement[bool]] = [_record.error_kind.is_not(None)] if failed else []
        with self._database.read() as connection:
            newest = connection.scalars(_OF_DEVICE, asked).all()
            query = select_records().where(_record.id.in_(newest), *wanted).order_by(_record.id.desc())
            return of_jobs(connection, query.limit(cursors.checked(limit)))

    def trials_on(self, device_id: str, most: int = 100_000) -> int:
        """How many trials a device has stored, counted up to ``most``."""
        # Without an order, and nothing but what the index has: no row is read.
        own = select(literal(1)).where(_record.device == bindparam("device"), _OURS).limit(bindparam("count"))
        counted = select(func.count()).select_from(own.subquery())
        with self._database.read() as connection:
            return connection.scalar(counted, {"device": device_id, "count": most}) or 0

    def device_readings(self, limit: int = 20_000, device_id: str | None = None) -> tuple[DeviceReading, ...]:
        """Readings of the newest ``limit`` trials (of one device, if given) whose device is known, oldest first."""
        newest = _newest_ids(device_id).limit(cursors.checked(limit)).subquery()
        query = (
            select(_record.device, search_tasks.c.job_id, jobs.c.name, _record.created_at, _record.anchor_s)
            .join(newest, newest.c.id == _record.id)
            .join(search_tasks, search_tasks.c.id == _record.search_task_id)
            .join(jobs, jobs.c.id == search_tasks.c.job_id)
            .where(_record.device.is_not(None))
            .order_by(_record.id)
        )
        with self._database.read() as connection:
            return tuple(DeviceReading(*row) for row in connection.execute(query))


def _newest_ids(device_id: str | None) -> Select[Any]:
    if device_id is None:
        return select(_record.id).order_by(_record.id.desc())
    own = and_(_record.device == device_id, _record.search_task_id.is_not(None))
    return select(_record.id).where(own).order_by(_record.created_at.desc(), _record.id.desc())


def _window(connection: Connection, seconds: float) -> tuple[float, str]:
    """The database's clock, and the moment ``seconds`` before: as a value, because PostgreSQL looks nothing up in an
    index by a clock that runs on while it does."""
    now_s = float(connection.execute(_NOW).scalar_one())
    since = datetime.fromtimestamp(now_s - seconds, UTC).isoformat(timespec="milliseconds")
    return now_s, since.replace("+00:00", "Z")
