"""Deleting what is no longer wanted, a bounded number of rows in each transaction. Successful records stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    cast,
    delete,
    exists,
    func,
    select,
    tuple_,
    update,
)

from tuner.records import ErrorKind
from tuner.storage.jobs import JobState
from tuner.storage.maintenance import Prunable, Retention
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import later
from tuner.storage.sql.counts import count_each
from tuner.storage.sql.engine import allow_long
from tuner.storage.sql.schema import (
    alias_history,
    artifact_files,
    artifacts,
    dispatchers,
    job_events,
    jobs,
    library_aliases,
    library_kernels,
    search_tasks,
    tuning_records,
)

PRUNED_EVENTS = ("progress", "trials", "log")
"""Kinds of events on the course of a search; those of its states, its baselines and its libraries stay."""
PASSING = (ErrorKind.BUILD, ErrorKind.BUILD_TIMEOUT, ErrorKind.RUN_TIMEOUT, ErrorKind.DEVICE)
"""Failures that say nothing against what a kernel computes. A kernel that was wrong or crashed must stay known."""
ENDED = tuple(state.value for state in JobState if state.ended)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one table that may be deleted, with the size of one. ``delete`` takes keys of up to so many of them."""

    what: str
    table: Table
    wanted: ColumnElement[bool]
    size: ColumnElement[int]
    delete: Callable[[Connection, Select[Any]], int]

    def counted(self, connection: Connection) -> Prunable:
        query = select(func.count(), func.coalesce(func.sum(self.size), 0)).select_from(self.table).where(self.wanted)
        rows, content = connection.execute(query).one()
        return Prunable(self.what, int(rows), int(content))

    def delete_some(self, connection: Connection, limit: int) -> int:
        keys = list(self.table.primary_key)
        return self.delete(connection, select(*keys).where(self.wanted).order_by(*keys).limit(limit))


class Pruning(Part):
    def prunable(self, retention: Retention) -> tuple[Prunable, ...]:
        """What ``prune`` would delete, of each kind that ``retention`` names."""
        with self._database.long_read() as connection:
            return tuple(rows.counted(connection) for rows in _chosen(retention))

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        """Delete up to ``limit`` rows of what ``retention`` names; how many were. 0: nothing is left.

        A transaction each: other writers never wait long.
        """
        left = cursors.checked(limit)
        for rows in _chosen(retention):
            with self._database.write() as connection:
                # Where little is left, most of a table may have to be read to find it.
                allow_long(connection)
                if deleted := rows.delete_some(connection, left):
                    return deleted
        return 0


def _chosen(retention: Retention) -> list[_Rows]:
    result = []
    if retention.events_older_than_s is not None:
        old = job_events.c.job_id.in_(_ended_before(retention.events_older_than_s))
        wanted = old & job_events.c.kind.in_(PRUNED_EVENTS)
        result.append(_Rows("events", job_events, wanted, _length(job_events.c.data), _delete_events))
    if retention.failed_trials_older_than_s is not None:
        ended = _ended_before(retention.failed_trials_older_than_s)
        tasks = select(search_tasks.c.id).where(search_tasks.c.job_id.in_(ended))
        failed = tuning_records.c.error_kind.in_([kind.value for kind in PASSING])
        wanted = failed & tuning_records.c.latency_s.is_(None) & tuning_records.c.search_task_id.in_(tasks)
        result.append(_Rows("failed_trials", tuning_records, wanted, _length(tuning_records.c.error), _delete_trials))
    if retention.superseded_artifacts:
        files = select(func.sum(func.length(artifact_files.c.content)))
        size = files.where(artifact_files.c.artifact_id == artifacts.c.id).scalar_subquery()
        result.append(_Rows("superseded_artifacts", artifacts, _is_superseded(), size, _delete_artifacts))
    return result


def _length(column: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.length(cast(column, Text)), 0)


def _is_superseded() -> ColumnElement[bool]:
    """Libraries that another replaced, and that no alias names or ever named: one may be rolled back to those."""
    names = (library_aliases.c.artifact_id, alias_history.c.artifact_id, alias_history.c.previous_id)
    return and_(artifacts.c.superseded_by.is_not(None), *(~exists().where(name == artifacts.c.id) for name in names))


def _delete_events(connection: Connection, keys: Select[Any]) -> int:
    return connection.execute(delete(job_events).where(tuple_(*job_events.primary_key).in_(keys))).rowcount


def _delete_trials(connection: Connection, keys: Select[Any]) -> int:
    gone = delete(tuning_records).where(tuning_records.c.id.in_(keys))
    rows = connection.execute(gone.returning(tuning_records.c.workload_id, tuning_records.c.target_id)).all()
    count_each(connection, rows, -1)
    return len(rows)


def _delete_artifacts(connection: Connection, keys: Select[Any]) -> int:
    """Delete libraries with their files and tables. What one of them had replaced is replaced by what replaced it."""
    numbers = connection.scalars(keys).all()
    for number in numbers:
        own = select(artifacts.c.superseded_by).where(artifacts.c.id == number)
        heir = connection.scalar(own)
        connection.execute(update(artifacts).where(artifacts.c.superseded_by == number).values(superseded_by=heir))
        for part in (artifact_files, dispatchers, library_kernels):
            connection.execute(delete(part).where(part.c.artifact_id == number))
        connection.execute(delete(artifacts).where(artifacts.c.id == number))
    return len(numbers)


def _ended_before(age_s: float) -> Select[Any]:
    """The ids of jobs that ended more than ``age_s`` seconds ago."""
    return select(jobs.c.id).where(jobs.c.state.in_(ENDED), jobs.c.ended_at < later(-age_s))
