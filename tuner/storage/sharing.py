"""Records that databases exchange: exporting them, importing those of another database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.storage.jsonl import SharedRecord

IMPORTED = "imported"
"""The provenance of a record that was measured for another database: it decides nothing until it is measured here."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of records that were imported: ``added``, and ``known``, which were there already."""

    added: int = 0
    known: int = 0

    def __add__(self, other: Imported) -> Imported:
        return Imported(self.added + other.added, self.known + other.known)


class SharingStorage(Protocol):
    """Exporting and importing records. ``tuner.storage.jsonl`` writes and reads them as lines.

    A record keeps its identity: everything that was measured, its job and its moment. One that was exported, imported
    elsewhere, exported there and imported here is the same record, and is not stored twice.
    """

    def export_records(
        self, workload_keys: Sequence[str] = (), after: int = 0, limit: int = 2000
    ) -> tuple[SharedRecord, ...]:
        """Records (of these workloads, if any are named) with ``seq`` above ``after``, in the order stored.

        Instances are in symbols. The job and the provenance of an imported record are those that it came with. Raises
        NotFound for a workload that is not known.
        """

    def import_records(self, records: Sequence[SharedRecord]) -> Imported:
        """Store the records that are not known yet, with the provenance ``imported``, and what they refer to.

        Raises InvalidInput on field ``records[INDEX]...``; nothing is stored then.
        """
