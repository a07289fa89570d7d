"""The results of a search for figures: a hundred thousand of them in a second.

Each row is read as it stands, without what is the same for all results of a search. A kernel and an instance are built
once, however many results they have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, select

from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase, speed_correction
from tuner.schedule.space import MicroKernel
from tuner.storage.errors import CorruptData, reading
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import from_json
from tuner.storage.sql.identity import instance_of, job_shapes_of
from tuner.storage.sql.schema import micro_kernels, tuning_records

_log = logging.getLogger(__name__)

_record = tuning_records.c
_PAGE = (
    select(
        *(_record.id, _record.kernel_id, _record.instance, _record.weight, _record.latency_s, _record.error_kind),
        *(_record.error, _record.build_s, _record.run_s, _record.predicted_s, _record.round, _record.phase),
        *(_record.attempt, _record.anchor_s, _record.device, cast(_record.samples_s, Text)),
    )
    .where(_record.search_task_id == bindparam("task"), _record.id > bindparam("after"))
    .order_by(_record.id)
    .limit(bindparam("count"))
)
_KERNELS = select(micro_kernels.c.id, cast(micro_kernels.c.kernel, Text).label("kernel")).where(
    micro_kernels.c.id.in_(bindparam("ids", expanding=True))
)
_KINDS: Mapping[str | None, ErrorKind | None] = {None: None, **{kind.value: kind for kind in ErrorKind}}
_PHASES = {phase.value: phase for phase in Phase}


@dataclass
class TaskResults:
    """The results of one search task, as far as they were read.

    Latencies are as the device would have measured them at the speed at which its anchor takes ``anchor_s``: what it
    took at the first successful result. ``after``: the number of the last row that was read.
    """

    search_task_id: int
    results: list[MeasureResult] = field(default_factory=list)
    anchor_s: float | None = None
    after: int = 0
    kernels: dict[str, MicroKernel] = field(default_factory=dict)
    instances: dict[tuple[str, float], WorkloadInstance] = field(default_factory=dict)
    shapes: Mapping[str, Mapping[str, int]] | None = None


class FigureResults(Part):
    def read_results(self, known: TaskResults, limit: int = 20_000) -> bool:
        """Add results that were stored since to those that are known, up to so many; whether there may be more.

        What cannot be read is left out, with an error in the log.
        """
        asked = {"task": known.search_task_id, "after": known.after, "count": cursors.checked(limit)}
        with self._database.read() as connection:
            rows = connection.execute(_PAGE, asked).all()
            if not rows:
                return False
            if known.shapes is None:
                known.shapes = job_shapes_of(connection, known.search_task_id)
            _add_kernels(connection, known, {row.kernel_id for row in rows})
        known.results.extend(_results(known, rows))
        known.after = rows[-1].id
        return len(rows) == limit


def _add_kernels(connection: Connection, known: TaskResults, ids: set[str]) -> None:
    new = sorted(ids - known.kernels.keys())
    if not new:
        return
    for row in connection.execute(_KERNELS, {"ids": new}):
        try:
            with reading(f"kernel {row.id}"):
                known.kernels[row.id] = MicroKernel.from_json(from_json(row.kernel))
        except CorruptData as error:
            _log.error("%s", error)


def _results(known: TaskResults, rows: Iterable[Sequence[Any]]) -> Iterable[MeasureResult]:
    for row in rows:
        try:
            yield _result(known, row)
        except (CorruptData, LookupError, ValueError, TypeError) as error:
            _log.error("record %s is left out: %s", row[0], error)


def _result(known: TaskResults, row: Sequence[Any]) -> MeasureResult:
    (_, kernel_id, shape, weight, latency_s, kind, error, build_s, run_s, predicted_s, number, phase, attempt, anchor_s,
     device, samples) = row  # fmt: skip
    instance = known.instances.get((shape, weight))
    if instance is None:
        instance = known.instances[shape, weight] = instance_of(shape, weight, known.shapes or {})
    if latency_s is not None:
        if known.anchor_s is None and kind is None and anchor_s:
            known.anchor_s = anchor_s
        latency_s *= speed_correction(anchor_s, known.anchor_s)
    return MeasureResult(
        known.kernels[kernel_id], instance, latency_s, tuple(from_json(samples)), _KINDS[kind], error, build_s, run_s,
        predicted_s, number, _PHASES[phase], attempt, anchor_s, device,
    )  # fmt: skip
