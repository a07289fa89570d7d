"""Records that a search starts from: of a service, of a file that `shapewright export` wrote, of a directory of
`shapewright tune`, of MetaSchedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright.defaults import sqlite_url
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.storage.jsonl import MAX_LINE, SharedRecord, read_records

if TYPE_CHECKING:
    from shapewright.client import Client

DATABASE = "tuning.db"
"""The file of a directory of `shapewright tune`."""
TRACES = "database_tuning_record.json"
"""The file of a directory of MetaSchedule that has the traces."""


def records_of(
    source: Client | str | Path, tasks: Sequence[SearchTask], field: str = "warm_start"
) -> Iterator[SharedRecord]:
    """The records of ``source`` that searches of ``tasks`` may start from, whose targets are known.

    ``source``: a client or the URL of a service, a file of JSON lines, a directory of `shapewright tune`, or one of
    MetaSchedule's JSONDatabase, which gives hints. Raises InvalidInput on ``field`` or on a line of the file,
    ServiceError, StorageUnavailable.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        from shapewright.client import Client  # noqa: PLC0415 - only for a service

        source = Client(source)
    if not isinstance(source, str | Path):
        yield from read_records(_lines(source.export_records(sorted({task.workload.key for task in tasks}))))
        return
    path = Path(source)
    if path.is_dir() and (path / DATABASE).is_file():
        yield from _of_database(path / DATABASE, tasks)
    elif (path / TRACES).is_file():
        from tuner.search.metaschedule import hints_of  # noqa: PLC0415 - only for such a directory

        yield from hints_of(path / TRACES, tasks)
    elif path.is_file():
        with path.open("rb") as file:
            # A line of any length is read no further than it may go on.
            yield from read_records(iter(lambda: file.readline(MAX_LINE + 1), b""))
    else:
        remedy = "the URL of a service, a file of `export`, a directory of `shapewright tune` or of MetaSchedule"
        raise InvalidInput(field, f"{str(path)!r} holds no records", remedy)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text that comes in pieces; one that is too long is handed on as far as it came."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE:
            break
    if rest:
        yield rest


def _of_database(path: Path, tasks: Sequence[SearchTask]) -> Iterator[SharedRecord]:
    """The records of the tasks' workloads, on every target that the database knows."""
    from tuner.storage.sql import open_storage  # noqa: PLC0415 - only for a directory

    with closing(open_storage(sqlite_url(path))) as storage:
        storage.check()
        wanted = {(task.workload.key, task.threads, task.cache): task.workload.canonical for task in tasks}
        for target in storage.list_targets():
            for (key, threads, cache), workload in wanted.items():
                for record in storage.prior_records(key, target.fingerprint, threads, cache):
                    yield SharedRecord(workload, target, record)
