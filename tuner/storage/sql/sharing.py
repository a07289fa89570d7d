"""Records of other databases: exported with all that they refer to, imported once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, text

from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.records import TuningRecord
from tuner.storage.errors import CorruptData, NotFound, Unreadable, reading
from tuner.storage.jsonl import MAX_TEXT, SharedRecord
from tuner.storage.maintenance import IMPORTED, Imported
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, insert_returning, readable
from tuner.storage.sql.counts import count_each
from tuner.storage.sql.devices import target_of
from tuner.storage.sql.identity import split_label, stored_workload
from tuner.storage.sql.jobs import target_ids, workload_ids
from tuner.storage.sql.record_rows import columns_of, records_of, select_records
from tuner.storage.sql.results import insert_kernels
from tuner.storage.sql.schema import search_tasks, targets, tuning_records, workloads

IMPORT_LOCK = 0x73776D6968
"""The number of an advisory lock: imports into one PostgreSQL database take turns, and so never wait for each other's
rows both ways."""

_record = tuning_records.c
_page = (
    select_records()
    .add_columns(_record.origin)
    .where(_record.id > bindparam("after"))
    .order_by(_record.id)
    .limit(bindparam("count"))
)
_page_of = _page.where(_record.workload_id.in_(bindparam("workload_ids", expanding=True)))


class Sharing(Part):
    def export_records(
        self, workload_keys: Sequence[str] = (), after: int = 0, limit: int = 2000
    ) -> tuple[SharedRecord, ...]:
        """Records (of these workloads, if any are named) with ``seq`` above ``after``, in the order stored.

        Instances are in symbols. The job and the provenance of an imported record are those that it came with. Raises
        NotFound for a workload that is not known.
        """
        asked: dict[str, Any] = {"after": cursors.position(after), "count": cursors.checked(limit)}
        with self._database.read() as connection:
            if workload_keys:
                asked["workload_ids"] = _known_ids(connection, workload_keys)
            while rows := connection.execute(_page_of if workload_keys else _page, asked).all():
                # One of which nothing can be read is passed over: an empty one ends an export.
                if result := _shared_of(connection, rows):
                    return result
                asked["after"] = rows[-1].id
        return ()

    def import_records(self, records: Sequence[SharedRecord]) -> Imported:
        """Store the records that are not known yet, with the provenance ``imported``, and what they refer to.

        Raises InvalidInput on field ``records[INDEX]...``; nothing is stored then.
        """
        dated = [_dated(shared, index) for index, shared in enumerate(records)]
        with self._database.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": IMPORT_LOCK})
            workload_ids = _workload_ids(connection, dated)
            distinct = {shared.record.target_fingerprint: shared.target for shared in dated}
            known_targets = target_ids(connection, list(distinct.values()))
            rows = [
                _row(shared, workload_ids[shared.record.workload_key], known_targets[shared.record.target_fingerprint])
                for shared in dated
            ]
            foreign = _without_own(connection, dated, rows)
            insert_kernels(connection, [shared.record.result.kernel for shared in dated])
            stored = insert_returning(connection, tuning_records, foreign, [_record.workload_id, _record.target_id])
            count_each(connection, stored)
            added = len(stored)
        return Imported(added, len(records) - added)


def uid_of(shared: SharedRecord) -> str:
    """What identifies a record in every database: a digest of what was measured, for which job, and when."""
    record = shared.record
    scope = (record.workload_key, record.target_fingerprint, record.threads, record.protocol)
    told = (*scope, record.job_id, record.created_at, record.result.to_json())
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def moment(text: str) -> str:
    """A moment in UTC with six digits of a second: databases keep three or six. Raises ValueError."""
    result = datetime.fromisoformat(text)
    if result.tzinfo is None:
        raise ValueError("it has no time zone")
    return result.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# -- exporting --------------------------------------------------------------------------------------------------------
def _known_ids(connection: Connection, workload_keys: Sequence[str]) -> list[int]:
    query = select(workloads.c.key, workloads.c.id).where(workloads.c.key.in_(workload_keys))
    result = {row.key: row.id for row in connection.execute(query)}
    for key in workload_keys:
        if key not in result:
            raise NotFound(f"no workload {key!r}")
    return list(result.values())


def _forms_of(connection: Connection, keys: set[str]) -> dict[str, JsonObject]:
    """The canonical form of each workload."""
    query = select(workloads.c.key, workloads.c.workload).where(workloads.c.key.in_(keys))
    rows = (row for row in connection.execute(query) if not isinstance(row.workload, Unreadable))
    return {row.key: split_label(row.workload)[0] for row in rows}


def _shared_of(connection: Connection, rows: Sequence[AnyRow]) -> tuple[SharedRecord, ...]:
    """The records that can be read."""
    result = records_of(rows)
    forms = _forms_of(connection, {row.workload_key for row in rows})
    query = select(targets.c.id, targets.c.target, targets.c.fingerprint)
    named = connection.execute(query.where(targets.c.fingerprint.in_({row.fingerprint for row in rows})))
    by_name = {target.fingerprint: target for target in readable("target", target_of, named)}
    origins = {row.id: row.origin for row in rows}
    return tuple(
        _shared(record, origins[record.seq], forms[record.workload_key], by_name[record.target_fingerprint])
        for record in result
        if record.workload_key in forms and record.target_fingerprint in by_name
    )


def _shared(record: TuningRecord, stored: JsonObject | None, workload: JsonObject, target: Target) -> SharedRecord:
    origin: JsonObject = {"job_id": record.job_id, "provenance": {"kind": record.provenance}}
    # Of one that cannot be read, only that it was imported is known.
    with suppress(CorruptData), reading(f"the origin of record {record.seq}", stored):
        if stored and stored["provenance"]["kind"] and "job_id" in stored:
            origin = stored
    # No longer than a reader takes.
    result = replace(record.result, error=record.result.error[:MAX_TEXT])
    kept = replace(
        record,
        result=result,
        job_id=origin["job_id"],
        created_at=moment(record.created_at),
        provenance=origin["provenance"]["kind"],
    )
    return SharedRecord(workload, target, kept, origin["provenance"])


# -- importing --------------------------------------------------------------------------------------------------------
def _dated(shared: SharedRecord, index: int) -> SharedRecord:
    try:
        created_at = moment(shared.record.created_at)
    except (ValueError, OverflowError) as error:
        what = f"{shared.record.created_at[:40]!r} is not a moment: {error}"
        raise InvalidInput(f"records[{index}].created_at", what, "as in 2026-01-31T12:00:00.000000Z") from None
    return replace(shared, record=replace(shared.record, created_at=created_at))


def _workload_ids(connection: Connection, records: Sequence[SharedRecord]) -> dict[str, int]:
    """The row number of each workload by its key; new ones are added."""
    forms = {shared.record.workload_key: shared.workload for shared in records}
    query = select(workloads.c.key, workloads.c.id).where(workloads.c.key.in_(forms))
    known = {row.key: row.id for row in connection.execute(query)}
    missing = sorted(set(forms) - set(known))
    if not missing:
        return known
    return known | workload_ids(connection, {key: stored_workload(workload_from_json(forms[key])) for key in missing})


def _row(shared: SharedRecord, workload_id: int, target_id: int) -> JsonObject:
    record = shared.record
    return {
        **columns_of(record.result),
        "search_task_id": None,
        "workload_id": workload_id,
        "target_id": target_id,
        "threads": record.threads,
        "kernel_id": record.result.kernel.id,
        "instance": str(record.result.instance),
        "protocol": record.protocol,
        "provenance": IMPORTED,
        "created_at": record.created_at,
        "uid": uid_of(shared),
        "origin": {"job_id": record.job_id, "provenance": shared.provenance},
    }


LookupScope = tuple[str | None, int, int, int]


def _without_own(
    connection: Connection, records: Sequence[SharedRecord], rows: Sequence[JsonObject]
) -> list[JsonObject]:
    """The rows that this database did not measure itself: those that a job of its own has are left out."""
    scopes = [
        (shared.record.job_id, row["workload_id"], row["target_id"], row["threads"])
        for shared, row in zip(records, rows, strict=True)
    ]
    tasks = _tasks_at(connection, scopes)
    if not tasks:
        return list(rows)
    ids = {number for result in tasks.values() for number in result}
    kernels = {row["kernel_id"] for row in rows}
    same = (_record.search_task_id.in_(ids), _record.kernel_id.in_(kernels))
    query = select(_record.search_task_id, _record.kernel_id, _record.instance, _record.attempt).where(*same)
    own = {tuple(row) for row in connection.execute(query)}
    return [
        row
        for scope, row in zip(scopes, rows, strict=True)
        if not any((task, row["kernel_id"], row["instance"], row["attempt"]) in own for task in tasks.get(scope, ()))
    ]


def _tasks_at(connection: Connection, scopes: Sequence[LookupScope]) -> Mapping[LookupScope, list[int]]:
    task = search_tasks.c
    jobs = {job_id for job_id, *_ in scopes if job_id is not None}
    query = select(task.id, task.job_id, task.workload_id, task.target_id, task.threads).where(task.job_id.in_(jobs))
    result: dict[LookupScope, list[int]] = {}
    for row in connection.execute(query):
        result.setdefault((row.job_id, row.workload_id, row.target_id, row.threads), []).append(row.id)
    return result
