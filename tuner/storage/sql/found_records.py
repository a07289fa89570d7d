"""Tuning records as people browse them: newest first, by what they are of."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select

from tuner.records import TuningRecord
from tuner.storage.jobs import Page
from tuner.storage.lookups import RecordQuery
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import Part
from tuner.storage.sql.record_rows import records_of, select_records
from tuner.storage.sql.schema import targets, tuning_records, workloads

LISTING = "records"
_record = tuning_records.c


class FoundRecords(Part):
    def find_records(self, query: RecordQuery, cursor: str | None = None, limit: int = 50) -> Page[TuningRecord]:
        """Newest first, instances in symbols. A cursor that is not ours raises InvalidInput on ``cursor``."""
        rows = select_records().where(*_matching(query)).order_by(_record.id.desc())
        if (before := cursors.decode(LISTING, cursor)) is not None:
            rows = rows.where(_record.id < before)
        with self._database.read() as connection:
            result = connection.execute(rows.limit(cursors.checked(limit) + 1)).all()
        listed = cursors.page(LISTING, result, limit, lambda row: int(row.id), lambda row: row)
        return Page(records_of(listed.items), listed.cursor)

    def list_fingerprints(self) -> tuple[str, ...]:
        """Of every target that a device or a search task has had."""
        with self._database.read() as connection:
            return tuple(connection.scalars(select(targets.c.fingerprint).order_by(targets.c.fingerprint)))


def _matching(query: RecordQuery) -> list[ColumnElement[bool]]:
    # Numbers looked up beforehand, not conditions on joined tables: the indexes begin with them.
    given: dict[ColumnElement[object], str | None] = {
        _record.provenance: query.provenance,
        _record.device: query.device,
        _record.kernel_id: query.kernel_id,
    }
    result = [column == value for column, value in given.items() if value is not None]
    if query.workload_key is not None:
        known = select(workloads.c.id).where(workloads.c.key == query.workload_key)
        result.append(_record.workload_id == known.scalar_subquery())
    if query.target_fingerprint is not None:
        target = select(targets.c.id).where(targets.c.fingerprint == query.target_fingerprint)
        result.append(_record.target_id == target.scalar_subquery())
    if query.failed is not None:
        result.append(_record.error_kind.is_not(None) if query.failed else _record.error_kind.is_(None))
    return result
