"""Figures for monitoring, read so that polling them costs little."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import BigInteger, Connection, func, select, type_coerce
from sqlalchemy.pool import QueuePool
from sqlalchemy.types import Double

from tuner.storage.jobs import JobState
from tuner.storage.maintenance import DevicePulse, Pulse
from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import age_s
from tuner.storage.sql.schema import devices, jobs, record_counts, tuning_records

WINDOW_S = 60.0
"""The window of a device's use that is shown."""
NEWEST = 5000
"""The trials that are looked at for it: no more come in that time."""

_record = tuning_records.c
_by_state = select(
    jobs.c.state,
    func.count().label("jobs"),
    func.sum(jobs.c.trials).label("trials"),
    func.sum(jobs.c.event_seq).label("events"),
).group_by(jobs.c.state)
_oldest_waiting = select(func.max(age_s(jobs.c.created_at))).where(jobs.c.state == JobState.WAITING.value)
_records = select(type_coerce(func.sum(record_counts.c.records), BigInteger))
_failed = (
    select(_record.error_kind, func.count().label("trials"))
    .where(_record.error_kind.is_not(None))
    .group_by(_record.error_kind)
)
_newest = (
    select(_record.device, _record.run_s, age_s(_record.created_at).label("age_s"))
    .where(_record.search_task_id.is_not(None))
    .order_by(_record.id.desc())
    .limit(NEWEST)
    .subquery()
)
_use = (
    select(_newest.c.device, type_coerce(func.sum(_newest.c.run_s), Double).label("run_s"))
    .where(_newest.c.age_s < WINDOW_S, _newest.c.device.is_not(None))
    .group_by(_newest.c.device)
)
_devices = select(devices.c.id, devices.c.key, age_s(devices.c.seen_at).label("seen_age_s")).order_by(devices.c.id)


class Pulses(Part):
    def pulse(self) -> Pulse:
        """Figures for monitoring."""
        with self._database.read() as connection:
            rows = connection.execute(_by_state).all()
            return Pulse(
                jobs={state.value: 0 for state in JobState} | {row.state: row.jobs for row in rows},
                queue_age_s=max(0.0, connection.scalar(_oldest_waiting) or 0.0),
                trials=sum(int(row.trials) for row in rows),
                events=sum(int(row.events) for row in rows),
                records=connection.scalar(_records) or 0,
                failed_trials={row.error_kind: row.trials for row in connection.execute(_failed)},
                devices=_device_pulses(connection),
                connections=self._connections(),
            )

    def _connections(self) -> Mapping[str, int]:
        pool = self._database.engine.pool
        if not isinstance(pool, QueuePool):
            return {}
        return {"in_use": pool.checkedout(), "idle": pool.checkedin()}


def _device_pulses(connection: Connection) -> tuple[DevicePulse, ...]:
    ran_s = {row.device: row.run_s for row in connection.execute(_use)}
    return tuple(
        DevicePulse(row.id, row.key, max(0.0, row.seen_age_s), min(1.0, ran_s.get(row.id, 0.0) / WINDOW_S))
        for row in connection.execute(_devices)
    )
