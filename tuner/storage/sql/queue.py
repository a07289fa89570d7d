"""The queue: which job is leased next, and when one is tried again.

The highest priority first; among its owners the one with the fewest jobs running, then the one served longest ago; of
an owner's jobs the oldest. So an owner with a thousand jobs waits in turn with one who has a single job.

What it costs grows with the number of owners who wait, not with the number of their jobs: each step is one look into
the index of the queue (state, device, priority, owner, number, not_before).

An attempt fails when its worker is lost (the lease expires) or gives it up for want of a device or a builder. One that
has recorded trials starts the count of failures in a row again: what moves on is not stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, bindparam, exists, func, or_, select, text

from tuner.storage.jobs import MAX_ATTEMPTS, Job, JobState
from tuner.storage.sql._rows import WORKED_ON, AnyRow, end, set_state
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.schema import jobs

LEASING = 0x73776C65
"""The number of an advisory lock: leases of one PostgreSQL database are taken one after the other, so that two workers
who come at once serve two owners."""


def _waiting(table: FromClause) -> ColumnElement[bool]:
    """The condition that a job is in the queue, and not put off after a failed attempt."""
    is_due = or_(table.c.not_before.is_(None), table.c.not_before <= now())
    return and_(table.c.state == JobState.WAITING, is_due)


_WAITING = _waiting(jobs)
_EXPIRED = and_(jobs.c.state == JobState.RUNNING, jobs.c.lease_expires_at < now())
_LEASABLE = or_(_WAITING, _EXPIRED)
"""Jobs that can be leased: waiting, or running under a lease that has expired by the database's clock."""
ABANDONED = and_(jobs.c.state == JobState.CANCELLING, jobs.c.lease_expires_at < now())
"""Jobs being cancelled whose lease has expired, for any device: the device may be gone too."""
_ON_DEVICES = jobs.c.device.in_(bindparam("devices", expanding=True))


@dataclass(frozen=True, slots=True)
class _Head:
    """An owner's oldest job of a priority. ``served_at``: when a job of the owner was last started."""

    owner: str
    number: int
    priority: int
    served_at: str | None


def _anything(wanted: ColumnElement[bool]) -> Select[bool]:
    return select(or_(exists().where(wanted), exists().where(ABANDONED)))


def _served() -> ColumnElement[str | None]:
    served = jobs.alias()
    return select(func.max(served.c.started_at)).where(served.c.owner == jobs.c.owner).scalar_subquery()


def _queued(table: FromClause) -> ColumnElement[bool]:
    """Waiting on the device, at the priority, that the statement is run with."""
    at = and_(table.c.device == bindparam("device"), table.c.priority == bindparam("priority"))
    return and_(_waiting(table), at)


def _heads() -> Select[tuple[str, int, str]]:
    """The oldest waiting job of each owner on one device at one priority: from one owner to the next by the index."""
    first, later, own, served = jobs.alias(), jobs.alias(), jobs.alias(), jobs.alias()

    owners = select(select(func.min(first.c.owner)).where(_queued(first)).scalar_subquery().label("owner")).cte(
        "owners", recursive=True
    )
    following = select(func.min(later.c.owner)).where(_queued(later), later.c.owner > owners.c.owner).scalar_subquery()
    owners = owners.union_all(select(following).where(owners.c.owner.is_not(None)))
    oldest = select(func.min(own.c.number)).where(_queued(own), own.c.owner == owners.c.owner).scalar_subquery()
    last = select(func.max(served.c.started_at)).where(served.c.owner == owners.c.owner).scalar_subquery()
    result = select(owners.c.owner, oldest.label("number"), last.label("served_at"))
    return result.where(owners.c.owner.is_not(None))


_ANYTHING = _anything(_LEASABLE)
_ANYTHING_ON = _anything(and_(_LEASABLE, _ON_DEVICES))
_ANY_ABANDONED = select(exists().where(ABANDONED))
_DEVICES = select(jobs.c.device).where(_WAITING).distinct()
_HIGHEST = select(func.max(jobs.c.priority)).where(_WAITING, jobs.c.device == bindparam("device"))
_HEADS = _heads()
_ALL_EXPIRED = select(jobs.c.owner, jobs.c.number, jobs.c.priority, jobs.c.device, _served().label("served_at")).where(
    _EXPIRED
)
_RUNNING = select(jobs.c.owner).where(jobs.c.state.in_(WORKED_ON), jobs.c.lease_expires_at >= now())
# The condition again: another transaction may have changed the row since it was found.
_LOCK = (
    select(jobs.c.id)
    .where(jobs.c.number == bindparam("number"), _LEASABLE)
    .with_for_update(skip_locked=True, key_share=True)
)


def anything_to_do(connection: Connection, device_keys: Sequence[str] | None) -> bool:
    """Whether a job can be leased, or an abandoned one ended."""
    if device_keys is None:
        return bool(connection.scalar(_ANYTHING))
    return bool(connection.scalar(_ANYTHING_ON, {"devices": list(device_keys)}))


def any_abandoned(connection: Connection) -> bool:
    """Whether a job that is being cancelled has lost its worker."""
    return bool(connection.scalar(_ANY_ABANDONED))


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction takes a lease. On SQLite writers come one at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LEASING})


def next_job(connection: Connection, device_keys: Sequence[str] | None) -> str | None:
    """The id of the job to lease, its row locked; None if there is none, or other transactions hold them all."""
    heads = list(_candidates(connection, device_keys))
    running = Counter(connection.scalars(_RUNNING))
    highest = max((head.priority for head in heads), default=0)
    turns = sorted(
        (head for head in heads if head.priority == highest),
        key=lambda head: (running[head.owner], head.served_at or "", head.number),
    )
    locked = (connection.scalar(_LOCK, {"number": head.number}) for head in turns)
    return next((job_id for job_id in locked if job_id is not None), None)


def _candidates(connection: Connection, device_keys: Sequence[str] | None) -> Iterator[_Head]:
    """The heads of the highest priority of every device, and every job whose lease has expired."""
    devices = connection.scalars(_DEVICES).all() if device_keys is None else device_keys
    for device in devices:
        highest = connection.scalar(_HIGHEST, {"device": device})
        if highest is not None:
            for row in connection.execute(_HEADS, {"device": device, "priority": highest}):
                yield _Head(row.owner, row.number, highest, row.served_at)
    for row in connection.execute(_ALL_EXPIRED):
        if device_keys is None or row.device in device_keys:
            yield _Head(row.owner, row.number, row.priority, row.served_at)


FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The wait before the third attempt in a row, and the longest: each is twice the one before. The second has none."""
MAX_ERROR = 4000


def count_failure(connection: Connection, row: AnyRow, error: str) -> Job:
    """Count a failed attempt at a job, whose row is locked: WAITING again, or FAILED after MAX_ATTEMPTS in a row."""
    failed = 1 if row.trials > row.trials_at_failure else row.failed_attempts + 1
    counted = {"failed_attempts": failed, "trials_at_failure": row.trials}
    error = error[-MAX_ERROR:]
    if failed >= MAX_ATTEMPTS:
        problem = f"{failed} attempts in a row failed with nothing recorded; the last: {error}"
        return end(connection, row.id, JobState.FAILED, problem, **counted)
    wait_s = min(FIRST_WAIT_S * 2 ** (failed - 2), LONGEST_WAIT_S) if failed > 1 else 0.0
    facts = {"error": error, "failed_attempts": failed, "max_attempts": MAX_ATTEMPTS, "wait_s": wait_s}
    again = {"worker": None, "lease_expires_at": None, "not_before": later(wait_s), "error": error}
    return set_state(connection, row.id, JobState.WAITING, facts, **again, **counted)


FORGOTTEN = {"failed_attempts": 0, "not_before": None}
"""The columns of a job that starts anew."""
