"""Tuning records, read: of a job, of a search task, and what later searches start from."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, and_, func, select, union

from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.records import TuningRecord, protocol_of
from tuner.storage.sql import cursors, latencies
from tuner.storage.sql._rows import Part, readable
from tuner.storage.sql.devices import target_of
from tuner.storage.sql.identity import split_label
from tuner.storage.sql.record_rows import of_jobs, records_of, select_records
from tuner.storage.sql.schema import disqualified_kernels, kernel_latencies, targets, tuning_records, workloads
from tuner.storage.sql.trials import trial_page

FASTEST = 8
"""Kernels of each instance that a search starts from however old their readings are."""

_record = tuning_records.c


class Records(Part):
    def list_trials(
        self, job_id: str, after: int = 0, limit: int = 1000, search_task_id: int | None = None
    ) -> tuple[TuningRecord, ...]:
        """Records of a job with ``seq`` (the row's number) above ``after``, in order. Raises NotFound."""
        with self._database.read() as connection:
            page = trial_page(connection, job_id, after, limit, search_task_id)
            if page is None:
                return ()
            within = (_record.search_task_id.in_(page.tasks), _record.id > page.after, _record.id <= page.last)
            return of_jobs(connection, select_records().where(*within).order_by(_record.id))

    def records_of_task(self, search_task_id: int) -> tuple[TuningRecord, ...]:
        """Everything a policy needs to be rebuilt, in the order it was stored.

        Instances are in the task's shape variables; one that is none of the task's is in the workload's symbols.
        """
        query = select_records().where(_record.search_task_id == search_task_id).order_by(_record.id)
        with self._database.read() as connection:
            return of_jobs(connection, query)

    def prior_records(
        self, workload_key: str, target_fingerprint: str, threads: int, cache: Cache = Cache.WARM, limit: int = 20_000
    ) -> tuple[TuningRecord, ...]:
        """What a search of the workload starts from, in the order stored: the newest ``limit`` of its records, and of
        older ones those that a kernel is known to be wrong by, and the newest readings of the fastest kernels."""
        same = (_on(target_fingerprint, threads, cache), _of(workload_key))
        newest = select(_record.id).where(*same).order_by(_record.id.desc()).limit(cursors.checked(limit)).subquery()
        place = (workload_key, target_fingerprint)
        ids = union(select(newest.c.id), _disqualifying(*place), _fastest(*place, threads, cache)).subquery()
        return self._all(select_records().join(ids, ids.c.id == _record.id).order_by(_record.id))

    def records_of_target(
        self, target_fingerprint: str, threads: int, rule: str, cache: Cache = Cache.WARM, limit: int = 20_000
    ) -> tuple[tuple[JsonObject, TuningRecord], ...]:
        """The newest successful records of a rule on a target, each with its workload in canonical form, whose shape
        variables are the symbols that the record gives: a model starts from them."""
        same = and_(_on(target_fingerprint, threads, cache), _record.rule == rule, _decides())
        query = select_records().where(same).order_by(_record.id.desc()).limit(cursors.checked(limit))
        with self._database.read() as connection:
            rows = records_of(connection.execute(query).all())
            keys = sorted({record.workload_key for record in rows})
            known = select(workloads.c.key, workloads.c.workload).where(workloads.c.key.in_(keys))
            by_key = {row.key: split_label(row.workload)[0] for row in connection.execute(known)}
        return tuple((by_key[record.workload_key], record) for record in rows)

    def list_targets(self) -> tuple[Target, ...]:
        """Every target that a device or a search task has had, in the order in which they came."""
        with self._database.read() as connection:
            rows = connection.execute(select(targets.c.id, targets.c.target).order_by(targets.c.id)).all()
        return tuple(readable("target", target_of, rows))

    def _all(self, query: Select[Any]) -> tuple[TuningRecord, ...]:
        with self._database.read() as connection:
            return records_of(connection.execute(query).all())


def _disqualifying(workload_key: str, target_fingerprint: str) -> Select[Any]:
    """The ids of records by which kernels are disqualified, on any number of threads and whatever the caches held."""
    bad = disqualified_kernels.c
    return select(bad.record_id).where(
        bad.workload_id == _workload_id(workload_key), bad.target_id == _target_id(target_fingerprint)
    )


def _fastest(workload_key: str, target_fingerprint: str, threads: int, cache: Cache) -> Select[Any]:
    """The ids of the newest readings of the FASTEST kernels at each instance."""
    known = kernel_latencies.c
    rank = func.row_number().over(partition_by=known.instance, order_by=known.latency_s).label("rank")
    ranked = (
        select(known.record_id, rank)
        .where(known.workload_id == _workload_id(workload_key), known.target_id == _target_id(target_fingerprint))
        .where(known.threads == threads, known.protocol == protocol_of(cache))
        .subquery()
    )
    return select(ranked.c.record_id).where(ranked.c.rank <= FASTEST)


def _on(target_fingerprint: str, threads: int, cache: Cache) -> ColumnElement[bool]:
    """Records that may be compared with each other: one target, as many threads, one protocol of this version."""
    target_id = _target_id(target_fingerprint)
    return and_(_record.target_id == target_id, _record.threads == threads, _record.protocol == protocol_of(cache))


def _of(workload_key: str) -> ColumnElement[bool]:
    return _record.workload_id == _workload_id(workload_key)


# Numbers looked up beforehand, not conditions on joined tables: the indexes begin with them.
def _workload_id(key: str) -> ScalarSelect[int]:
    return select(workloads.c.id).where(workloads.c.key == key).scalar_subquery()


def _target_id(fingerprint: str) -> ScalarSelect[int]:
    return select(targets.c.id).where(targets.c.fingerprint == fingerprint).scalar_subquery()


def _decides() -> ColumnElement[bool]:
    return and_(_record.latency_s.is_not(None), _record.provenance == latencies.MEASURED)
