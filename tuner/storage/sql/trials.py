"""Trials of a job as JSON text, a page at a time.

A page has up to 2,000 of them. Made into objects, and those into JSON, they take ten times as long as they take to
read; so what the database holds as JSON goes out as it stands.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, func, select

from tuner.storage.errors import Unreadable
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, find_job
from tuner.storage.sql.columns import decoded
from tuner.storage.sql.identity import instance_of, shapes_of
from tuner.storage.sql.schema import micro_kernels, search_tasks, targets, tuning_records, workloads

_log = logging.getLogger(__name__)

# Built once: composing a statement takes longer than running it.
_record = tuning_records.c
_TASKS = select(search_tasks.c.id).where(search_tasks.c.job_id == bindparam("job"))
_AFTER = (
    select(_record.id)
    .where(_record.search_task_id == bindparam("task"), _record.id > bindparam("after"))
    .order_by(_record.id)
    .limit(bindparam("count"))
)
_end = _AFTER.subquery()
_LAST = select(func.max(_end.c.id))
_ABOUT = (
    select(
        search_tasks.c.id,
        search_tasks.c.job_id,
        workloads.c.key,
        targets.c.fingerprint,
        search_tasks.c.threads,
        cast(search_tasks.c.task, Text).label("text"),
    )
    .join(workloads, workloads.c.id == search_tasks.c.workload_id)
    .join(targets, targets.c.id == search_tasks.c.target_id)
    .where(search_tasks.c.id.in_(bindparam("tasks", expanding=True)))
)
_PAGE = (
    select(
        *(_record.id, _record.search_task_id, _record.protocol, _record.provenance, _record.created_at),
        *(_record.kernel_id, _record.instance, _record.weight, _record.latency_s),
        *(cast(_record.samples_s, Text), _record.error_kind, _record.error, _record.build_s, _record.run_s),
        *(_record.predicted_s, _record.round, _record.phase, _record.attempt, _record.anchor_s, _record.device),
    )
    .where(
        _record.search_task_id.in_(bindparam("tasks", expanding=True)),
        _record.id > bindparam("after"),
        _record.id <= bindparam("last"),
    )
    .order_by(_record.id)
)

# Apart from the page: a kernel is measured at many instances.
_KERNELS = select(micro_kernels.c.id, cast(micro_kernels.c.kernel, Text).label("kernel")).where(
    micro_kernels.c.id.in_(bindparam("ids", expanding=True))
)


@dataclass(frozen=True, slots=True)
class TrialPage:
    """The records on a page of a job's trials: those of ``tasks`` with numbers above ``after``, up to ``last``."""

    tasks: Sequence[int]
    after: int
    last: int


class Trials(Part):
    def trials_as_json(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[list[str], int]:
        """The records of ``list_trials``, each as a JSON object (of a record and its result), and the number of the
        last one: ``after`` if there are none. Raises NotFound."""
        with self._database.read() as connection:
            page = trial_page(connection, job_id, after, limit)
            if page is None:
                return [], after
            about = {row.id: row for row in connection.execute(_ABOUT, {"tasks": page.tasks})}
            asked = {"tasks": page.tasks, "after": page.after, "last": page.last}
            rows = connection.execute(_PAGE, asked).all()
            kernels = connection.execute(_KERNELS, {"ids": sorted({row.kernel_id for row in rows})})
            known = (row for row in kernels if _is_json(row.kernel, dict))
            named = {row.id: f'"kernel":{row.kernel},"kernel_id":{_text(row.id)}' for row in known}
        return _texts(rows, about, named), page.last


def trial_page(
    connection: Connection, job_id: str, after: int, limit: int, search_task_id: int | None = None
) -> TrialPage | None:
    """The page of trials behind ``after``; None if there are none. Raises NotFound.

    Where it ends is found in an index alone: a database would sort all that remains rather than merge several tasks.
    """
    tasks = connection.scalars(_TASKS, {"job": job_id}).all()
    if not tasks:
        find_job(connection, job_id)
    wanted = [number for number in tasks if search_task_id in (None, number)]
    start, count = cursors.position(after), cursors.checked(limit)
    if len(wanted) == 1:
        only: int | None = connection.scalar(_LAST, {"task": wanted[0], "after": start, "count": count})
        return None if only is None else TrialPage(wanted, start, only)
    each = [connection.scalars(_AFTER, {"task": task, "after": start, "count": count}).all() for task in wanted]
    last = max(islice(heapq.merge(*each), count), default=None)
    return None if last is None else TrialPage(wanted, start, last)


def _texts(rows: Sequence[Any], about: Mapping[int, AnyRow], kernels: Mapping[str, str]) -> list[str]:
    of_task = {number: _of_task(row) for number, row in about.items()}
    shapes = shapes_of(about.values())
    instances: dict[tuple[int, str, float], str] = {}
    texts = []
    for values in map(tuple[Any, ...], rows):
        seq, task, protocol, provenance, created_at, kernel_id, named, weight, latency_s, samples = values[:10]
        error_kind, error, build_s, run_s, predicted_s, turn, phase, attempt, anchor_s, device = values[10:]
        if kernel_id not in kernels or not _is_json(samples, list):
            _log.error("trial %s is left out: its kernel, or its samples, cannot be read", seq)
            continue
        if (instance := instances.get((task, named, weight))) is None:
            instance = json.dumps(instance_of(named, weight, shapes.get(task, {})).to_json())
            instances[task, named, weight] = instance
        texts.append(
            f'{{"seq":{seq},{of_task[task]},"protocol":{_text(protocol)},"provenance":{_text(provenance)},'
            f'"created_at":"{created_at}",{kernels[kernel_id]},"instance":{instance},'
            f'"latency_s":{_number(latency_s)},"samples_s":{samples},"error_kind":{_text(error_kind)},'
            f'"error":{_text(error)},"build_s":{_number(build_s)},"run_s":{_number(run_s)},'
            f'"predicted_s":{_number(predicted_s)},"round":{turn},"phase":{_text(phase)},"attempt":{attempt},'
            f'"anchor_s":{_number(anchor_s)},"device":{_text(device)}}}'
        )
    return texts


def _is_json(text: str, shape: type) -> bool:
    """Whether a column can be passed on as it stands."""
    value = decoded(text)
    return isinstance(value, shape) and not isinstance(value, Unreadable)


def _of_task(row: AnyRow) -> str:
    return (
        f'"job_id":{_text(row.job_id)},"search_task_id":{row.id},"workload_key":{_text(row.key)},'
        f'"target_fingerprint":{_text(row.fingerprint)},"threads":{row.threads}'
    )


def _text(value: str | None) -> str:
    return _quoted(value) if value else "null" if value is None else '""'


_quoted = json.encoder.encode_basestring_ascii


def _number(value: float | None) -> str:
    # JSON has no infinities, nor what is no number: their difference from themselves is not 0.
    return "null" if value is None or value - value != 0 else repr(value)
