"""Streams of records: from the database to lines, and from lines to the database, a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tuner.storage import Imported
from tuner.storage.jsonl import MAX_LINE, read_records, write_records
from tuner.storage.sql import OperatorStorage

EXPORT_PAGE = 1000
IMPORT_BATCH = 500
"""Records that are stored in one transaction, so that no other writer waits long."""


def exported(storage: OperatorStorage, workload_keys: Sequence[str]) -> Iterator[bytes]:
    """The lines of all records of these workloads (of all, if none is named), a page of the database in each piece.

    The first page is read at once. Raises NotFound.
    """
    first = storage.export_records(workload_keys, limit=EXPORT_PAGE)

    def pieces() -> Iterator[bytes]:
        page, is_first = first, True
        while page or is_first:
            lines = write_records(page)
            yield "".join(lines if is_first else islice(lines, 1, None)).encode()
            if not page:
                return
            page, is_first = storage.export_records(workload_keys, page[-1].record.seq, EXPORT_PAGE), False

    return pieces()


def imported(storage: OperatorStorage, pieces: Iterable[bytes], actor: str = "") -> Imported:
    """Store the records of a file that arrives in pieces of any size, and note who brought them.

    Raises InvalidInput on field ``line N...`` for the first that cannot be used. What came in earlier batches is stored
    by then: sent again with that line mended, the same file adds the rest.
    """
    total = Imported()
    records = read_records(lines_of(pieces))
    try:
        while batch := list(islice(records, IMPORT_BATCH)):
            total += storage.import_records(batch)
    finally:
        if total.added:
            storage.note(actor, "records.import", "records", {"added": total.added, "known": total.known})
    return total


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text in pieces, without their ends. A line that is too long comes cut, and is refused as such."""
    rest = bytearray()
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        for part in whole:
            rest += part
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > MAX_LINE:
            break
    if rest:
        yield bytes(rest)
