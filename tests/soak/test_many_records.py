"""A million records go through a service and come back as they were, and its memory does not grow with them."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from service.records.service import exported, imported
from tests.contract.test_storage_sharing import drawn
from tuner.storage import Imported
from tuner.storage.jsonl import write_records
from tuner.storage.sql import open_storage, upgrade

RECORDS = 1_000_000
GROWTH_BYTES = 150 * 2**20
"""Of the process while it imports and exports: a file of them all is more than a gigabyte."""


def pieces() -> Iterator[bytes]:
    """The file, a thousand lines at a time: some records over and over, each for a job of its own."""
    some = drawn(0, 1000)
    every = (replace(each, record=replace(each.record, job_id=f"job-{number}")) for number in count() for each in some)
    lines = write_records(islice(every, RECORDS))
    while part := "".join(islice(lines, 1000)):
        yield part.encode()


def digest(parts: Iterator[bytes]) -> str:
    result = hashlib.sha256()
    for part in parts:
        result.update(part)
    return result.hexdigest()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_a_million_records_come_back_as_they_were(tmp_path: Path) -> None:
    wanted = digest(pieces())
    storages = []
    for name in ("first", "second"):
        upgrade(f"sqlite:///{tmp_path / name}.db")
        storages.append(open_storage(f"sqlite:///{tmp_path / name}.db"))
    first, second = storages
    imported(first, islice(pieces(), 20))
    before = peak_bytes()
    assert imported(first, pieces()).added + 20_000 - 1 == RECORDS
    assert digest(exported(first, ())) == wanted
    assert imported(second, exported(first, ())) == Imported(RECORDS, 0)
    assert digest(exported(second, ())) == wanted
    assert imported(second, islice(exported(first, ()), 10)).added == 0
    assert peak_bytes() - before < GROWTH_BYTES
    for storage in storages:
        storage.close()
