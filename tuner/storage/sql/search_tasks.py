"""Search tasks: of a job, and of a workload in every job."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, select

from tuner.records import Baselines
from tuner.storage.errors import NotFound, reading
from tuner.storage.jobs import SearchTaskRow
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job
from tuner.storage.sql.identity import stored_task
from tuner.storage.sql.schema import artifacts, search_tasks, targets, workloads


class SearchTasks(Part):
    def search_tasks(self, job_id: str, first: int = 0, limit: int | None = None) -> tuple[SearchTaskRow, ...]:
        """Up to ``limit`` search tasks, by position, from ``first`` on. Raises NotFound, CorruptData."""
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tasks_of(connection, job_id, first, limit)

    def task_keys(self, job_id: str) -> tuple[str, ...]:
        """The workload's key of every search task, in order of position. Raises NotFound."""
        query = (
            select(workloads.c.key)
            .join(search_tasks, workloads.c.id == search_tasks.c.workload_id)
            .where(search_tasks.c.job_id == job_id)
            .order_by(search_tasks.c.position)
        )
        with self._database.read() as connection:
            find_job(connection, job_id)
            return tuple(connection.scalars(query))

    def tasks_of_workload(self, workload_key: str, limit: int = 200) -> tuple[SearchTaskRow, ...]:
        """The newest search tasks for a workload, newest first. Raises NotFound."""
        query = select_tasks().where(workloads.c.key == workload_key).order_by(search_tasks.c.id.desc())
        with self._database.read() as connection:
            result = tuple(map(task_of, connection.execute(query.limit(cursors.checked(limit)))))
        if not result:
            raise NotFound(f"no job has been submitted for workload {workload_key!r}")
        return result

    def latest_task(self, workload_key: str, target_fingerprint: str | None = None) -> SearchTaskRow:
        """The newest search task for a workload, one that has a library if there is any. Raises NotFound."""
        query = select_tasks().where(workloads.c.key == workload_key)
        if target_fingerprint is not None:
            query = query.where(targets.c.fingerprint == target_fingerprint)
        built = exists().where(artifacts.c.search_task_id == search_tasks.c.id)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(built.desc(), search_tasks.c.id.desc()).limit(1)).one_or_none()
        if row is None:
            place = "" if target_fingerprint is None else f" on target {target_fingerprint}"
            raise NotFound(f"no job has been submitted for workload {workload_key!r}{place}")
        return task_of(row)


def select_tasks() -> Select[Any]:
    """Search tasks with the names of their workloads and targets."""
    return (
        select(search_tasks, workloads.c.key, targets.c.fingerprint)
        .join(workloads, workloads.c.id == search_tasks.c.workload_id)
        .join(targets, targets.c.id == search_tasks.c.target_id)
    )


def tasks_of(
    connection: Connection, job_id: str, first: int = 0, limit: int | None = None
) -> tuple[SearchTaskRow, ...]:
    wanted = and_(search_tasks.c.job_id == job_id, search_tasks.c.position >= first)
    query = select_tasks().where(wanted).order_by(search_tasks.c.position).limit(limit)
    return tuple(map(task_of, connection.execute(query)))


def task_of(row: AnyRow) -> SearchTaskRow:
    what = f"search task {row.id} of job {row.job_id}"
    with reading(what, row.task):
        task = stored_task(json.dumps(row.task))
    with reading(f"what was timed for {what}", row.baselines):
        baselines = Baselines.from_json(row.baselines)
    return SearchTaskRow(
        id=row.id,
        job_id=row.job_id,
        position=row.position,
        # Row has a method of that name.
        count=row._mapping["count"],
        workload_key=row.key,
        target_fingerprint=row.fingerprint,
        task=task,
        spent_s=row.spent_s,
        done=row.done,
        baselines=baselines,
    )


def find_task(connection: Connection, job_id: str, search_task_id: int) -> AnyRow:
    """The row of a search task of this job. Raises NotFound."""
    wanted = and_(search_tasks.c.id == search_task_id, search_tasks.c.job_id == job_id)
    row = connection.execute(select(search_tasks).where(wanted)).one_or_none()
    if row is None:
        raise no_task(job_id, search_task_id)
    return row


def no_task(job_id: str, search_task_id: int) -> NotFound:
    return NotFound(f"job {job_id} has no search task {search_task_id}")
