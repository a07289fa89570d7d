"""Workloads, and how much is known about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, cast, distinct, func, or_, select

from tuner.storage.errors import NotFound
from tuner.storage.jobs import Page
from tuner.storage.lookups import WorkloadRow
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.columns import SafeText
from tuner.storage.sql.identity import split_label
from tuner.storage.sql.schema import record_counts, search_tasks, targets, workloads

# Built once: composing a statement takes longer than running it.
_LISTED = (
    select(workloads)
    .where(workloads.c.id < bindparam("before"))
    .order_by(workloads.c.id.desc())
    .limit(bindparam("count"))
)
_ids: BindParameter[int] = bindparam("ids", expanding=True)
_task = search_tasks.c
_JOBS = (
    select(_task.workload_id, func.count(distinct(_task.job_id)).label("jobs"))
    .where(_task.workload_id.in_(_ids))
    .group_by(_task.workload_id)
)
_ASKED = (
    select(_task.workload_id, targets.c.fingerprint)
    .distinct()
    .join(targets, targets.c.id == _task.target_id)
    .where(_task.workload_id.in_(_ids))
)
_RECORDED = (
    select(record_counts.c.workload_id, targets.c.fingerprint, record_counts.c.records)
    .join(targets, targets.c.id == record_counts.c.target_id)
    .where(record_counts.c.workload_id.in_(_ids))
)


@dataclass(slots=True)
class _Known:
    jobs: int = 0
    records: int = 0
    targets: set[str] = field(default_factory=set)


class Workloads(Part):
    def list_workloads(self, cursor: str | None = None, limit: int = 50, text: str = "") -> Page[WorkloadRow]:
        """Newest first; those whose key, label or program holds ``text``, in any case."""
        before = cursors.decode("workloads", cursor)
        asked = {
            "before": cursors.MAX_NUMBER if before is None else cursors.position(before),
            "count": cursors.checked(limit) + 1,
        }
        with self._database.read() as connection:
            rows = connection.execute(_found(text) if text else _LISTED, asked).all()
            known = _known(connection, [row.id for row in rows])
        return cursors.page("workloads", rows, limit, lambda row: int(row.id), lambda row: _workload_of(row, known))

    def get_workload(self, workload_key: str) -> WorkloadRow:
        """Raises NotFound."""
        with self._database.read() as connection:
            row = connection.execute(select(workloads).where(workloads.c.key == workload_key)).one_or_none()
            if row is None:
                raise NotFound(f"no workload {workload_key!r}")
            return _workload_of(row, _known(connection, [row.id]))


def _found(text: str) -> Select[Any]:
    # A bound text has the type of what it is compared with, and SafeText replaces what databases refuse.
    held = (workloads.c.key, cast(workloads.c.workload, SafeText))
    return _LISTED.where(or_(*(column.icontains(text, autoescape=True) for column in held)))


def _known(connection: Connection, ids: Sequence[int]) -> Mapping[int, _Known]:
    known, asked = {number: _Known() for number in ids}, {"ids": list(ids)}
    for row in connection.execute(_JOBS, asked):
        known[row.workload_id].jobs = row.jobs
    for row in connection.execute(_ASKED, asked):
        known[row.workload_id].targets.add(row.fingerprint)
    for row in connection.execute(_RECORDED, asked):
        if row.records:
            known[row.workload_id].targets.add(row.fingerprint)
            known[row.workload_id].records += row.records
    return known


def _workload_of(row: AnyRow, known: Mapping[int, _Known]) -> WorkloadRow:
    result = known[row.id]
    workload, label = split_label(row.workload)
    return WorkloadRow(
        key=row.key,
        workload=workload,
        label=label,
        created_at=row.created_at,
        jobs=result.jobs,
        records=result.records,
        targets=tuple(sorted(result.targets)),
    )
