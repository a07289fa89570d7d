"""What is one across jobs: workloads in canonical form, and records by the values of the workload's symbols.

A job speaks of its own shape variables (``T=37``). Its records are stored by what was computed (``m=592``), so that
jobs that write the same extent as ``16*T`` and as ``8*S`` share them; the job reads them in its own variables again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, cast, select

from tuner.program.job.instances import parse_shape
from tuner.program.job.task import SearchTask, check_shape
from tuner.program.language.workload import JsonObject, Workload, WorkloadInstance, format_shape
from tuner.storage.errors import CorruptData, reading
from tuner.storage.sql.schema import search_tasks

_log = logging.getLogger(__name__)

_TASK = select(search_tasks.c.id, cast(search_tasks.c.task, Text).label("text")).where(
    search_tasks.c.id == bindparam("task")
)
LABEL = "label"
"""The member beside the canonical form: what the job that came first with the workload called it."""


def stored_workload(workload: Workload) -> JsonObject:
    return {**workload.canonical, LABEL: workload.label}


def split_label(stored: JsonObject) -> tuple[JsonObject, str]:
    """The canonical form, which ``workload_from_json`` reads, and the label."""
    return {name: value for name, value in stored.items() if name != LABEL}, str(stored.get(LABEL, ""))


@lru_cache(maxsize=256)
def stored_task(text: str) -> SearchTask:
    """A search task from the JSON text of its row, which never changes."""
    with reading("a search task"):
        return SearchTask.from_json(json.loads(text))


def symbols_text(task: SearchTask, instance: WorkloadInstance) -> str:
    """``m=592``: how records name an instance of a task. Raises InvalidInput if it is none of the task's variables."""
    check_shape(task, instance.shape)
    return format_shape(task.workload.dims(instance.shape))


@lru_cache(maxsize=256)
def job_shapes(task: str) -> Mapping[str, Mapping[str, int]]:
    """The shapes of a task given as JSON text: how records name its instances -> the values of its shape variables.

    The shape that a search adds by itself is among them.
    """
    result = stored_task(task).with_least_shape()
    return {symbols_text(result, instance): instance.shape for instance in result.instances}


def job_shapes_of(connection: Connection, task: int) -> Mapping[str, Mapping[str, int]]:
    """The ``job_shapes`` of one search task; empty if there is none, or it cannot be read."""
    return shapes_of(connection.execute(_TASK, {"task": task})).get(task, {})


def shapes_of(rows: Iterable[Row[Any]]) -> Mapping[int, Mapping[str, Mapping[str, int]]]:
    """The ``job_shapes`` of each search task by number, from rows with its JSON as ``text``.

    One that cannot be read has none: its records stand in symbols.
    """
    result = {}
    for row in rows:
        try:
            result[row.id] = job_shapes(row.text)
        except CorruptData as error:
            _log.error("search task %s: %s", row.id, error)
    return result


def instance_of(text: str, weight: float, shapes: Mapping[str, Mapping[str, int]]) -> WorkloadInstance:
    """The instance that a record names, in a job's variables where ``shapes`` has it, else in symbols."""
    with reading("the instance of a record"):
        return WorkloadInstance.of(shapes[text] if text in shapes else parse_shape(text), weight)
