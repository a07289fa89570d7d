"""Tables of the trials of one search task: filtered, in any order, a part at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import UnionType
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from tuner.errors import InvalidInput
from tuner.schedule.space import MicroKernel
from tuner.storage.errors import CorruptData, reading
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, readable
from tuner.storage.sql.identity import instance_of, job_shapes_of
from tuner.storage.sql.schema import micro_kernels, tuning_records
from tuner.storage.trials import FAILED, SUCCEEDED, TrialFacet, TrialLine, TrialOrder, TrialQuery, TrialTable

_record = tuning_records.c
LAST = 1e300
"""What stands for a figure that is not there, in ascending order: no latency is as long."""
COLUMNS: Mapping[TrialOrder, ColumnElement[Any]] = {
    TrialOrder.STORED: _record.id,
    TrialOrder.LATENCY: _record.latency_s,
    TrialOrder.PREDICTED: _record.predicted_s,
    TrialOrder.ROUND: _record.round,
    TrialOrder.KERNEL: _record.kernel_id,
    TrialOrder.BUILD: _record.build_s,
    TrialOrder.RUN: _record.run_s,
}
_AS_STORED = (
    *("latency_s", "predicted_s", "error_kind", "error", "round", "phase"),
    *("attempt", "build_s", "run_s", "anchor_s", "device", "created_at"),
)
_CARRIED = ("id", "kernel_id", "instance", "weight", "samples_s", *_AS_STORED)
_OPTIONAL = (TrialOrder.LATENCY, TrialOrder.PREDICTED)
Shapes = Mapping[str, Mapping[str, int]]


class TrialTables(Part):
    def find_trials(self, search_task_id: int, query: TrialQuery) -> TrialTable:
        """A part of the trials of a search task. A cursor of another order raises InvalidInput on ``cursor``."""
        with self._database.read() as connection:
            shapes = job_shapes_of(connection, search_task_id)
            key = _key(query)
            where = [_record.search_task_id == search_task_id, *_conditions(query, shapes)]
            if query.cursor is not None:
                where.append(_behind(key, query))
            order = (key.desc(), _record.id.desc()) if query.descending else (key.asc(), _record.id.asc())
            rows = connection.execute(_lines(key).where(*where).order_by(*order).limit(query.limit + 1)).all()
        kept = rows[: query.limit]
        cursor = _encoded(query, kept[-1]) if len(rows) > query.limit else None
        return TrialTable(tuple(readable("trial", lambda row: _line_of(row, shapes), kept)), cursor)

    def trial_facets(self, search_task_id: int) -> tuple[TrialFacet, ...]:
        """How the trials of a search task are spread over errors, phases and instances."""
        by = (_record.error_kind, _record.phase, _record.instance)
        query = select(*by, func.count().label("trials")).where(_record.search_task_id == search_task_id).group_by(*by)
        with self._database.read() as connection:
            shapes = job_shapes_of(connection, search_task_id)
            rows = connection.execute(query).all()
        return tuple(
            TrialFacet(row.error_kind, row.phase, str(instance_of(row.instance, 1.0, shapes)), row.trials)
            for row in sorted(rows, key=lambda row: (row.error_kind or "", row.phase, row.instance))
        )


def _lines(key: ColumnElement[Any]) -> Select[Any]:
    columns = [column for column in tuning_records.c if column.name in _CARRIED]
    return select(*columns, micro_kernels.c.kernel, key.label("key")).join(
        micro_kernels, micro_kernels.c.id == _record.kernel_id
    )


def _key(query: TrialQuery) -> ColumnElement[Any]:
    column = COLUMNS[query.order]
    return func.coalesce(column, -1.0 if query.descending else LAST) if query.order in _OPTIONAL else column


def _conditions(query: TrialQuery, shapes: Shapes) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.error == SUCCEEDED:
        conditions.append(_record.error_kind.is_(None))
    elif query.error == FAILED:
        conditions.append(_record.error_kind.is_not(None))
    elif query.error:
        conditions.append(_record.error_kind == str(query.error))
    if query.kernel:
        conditions.append(_record.kernel_id.startswith(query.kernel, autoescape=True))
    if query.instance:
        named = [text for text in shapes if str(instance_of(text, 1.0, shapes)) == query.instance]
        conditions.append(_record.instance.in_([*named, query.instance]))
    if query.phase is not None:
        conditions.append(_record.phase == query.phase.value)
    return conditions


# -- cursors --------------------------------------------------------------------------------------------------------
def _encoded(query: TrialQuery, row: AnyRow) -> str:
    return cursors.opaque(json.dumps([query.order, query.descending, row.key, row.id]))


def _behind(key: ColumnElement[Any], query: TrialQuery) -> ColumnElement[bool]:
    """What comes after the row that a part ended with. Raises InvalidInput."""
    value, number = _decoded(query)
    if query.descending:
        return or_(key < value, and_(key == value, _record.id < number))
    return or_(key > value, and_(key == value, _record.id > number))


def _decoded(query: TrialQuery) -> tuple[Any, int]:
    cursor = query.cursor or ""
    try:
        order, descending, value, number = json.loads(cursors.text_of(cursor))
    except (ValueError, TypeError):
        order = descending = value = number = None
    is_ours = isinstance(value, str) if query.order is TrialOrder.KERNEL else _fits(value, float | int)
    if (order, descending) != (query.order, query.descending) or not is_ours or not _fits(number, int):
        raise InvalidInput("cursor", f"{cursor[:80]!r} is not a cursor of this table", "take it from a part of it")
    return value, number


def _fits(value: object, kind: type | UnionType) -> bool:
    """Whether it is a number that every database takes: anybody can write a cursor."""
    is_small = not isinstance(value, int) or abs(value) <= cursors.MAX_NUMBER
    return isinstance(value, kind) and not isinstance(value, bool) and is_small


def _line_of(row: AnyRow, shapes: Shapes) -> TrialLine:
    with reading(f"trial {row.id}"):
        kernel, samples = MicroKernel.from_json(row.kernel), tuple(row.samples_s)
    if not all(isinstance(sample, int | float) for sample in samples):
        raise CorruptData(f"trial {row.id}: its samples are no numbers")
    return TrialLine(
        seq=row.id,
        kernel_id=row.kernel_id,
        kernel=kernel,
        instance=instance_of(row.instance, row.weight, shapes),
        samples_s=samples,
        **{name: getattr(row, name) for name in _AS_STORED},
    )
