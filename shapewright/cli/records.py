"""Commands that carry records from one service to another: `export`, `import`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapewright.cli import options
from shapewright.cli.finding import client
from shapewright.cli.libraries import resolve
from shapewright.cli.output import as_json, emit
from shapewright.replacing import replaced

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.queries import WorkloadLike

PIECE = 2**18


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@options.service
@as_json
def export_records(
    *, file: Path, workloads: tuple[str, ...], url: str | None, key: str | None, json_output: bool
) -> None:
    """Write the service's tuning records to FILE, as JSON lines.

    WORKLOAD is a key or a job file; without one, all records are written.
    """
    named = [resolve(workload, None)[0] for workload in workloads]
    with client(url, key) as service:
        try:
            records = _write(service, named, file)
        except OSError as error:
            raise options.not_writable(file.parent, "FILE", error) from error
    emit({"file": str(file), "records": records}, json_output, f"{file}: {records} records")


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@options.service
@as_json
def import_records(*, file: Path, url: str | None, key: str | None, json_output: bool) -> None:
    """Import tuning records that `export` wrote.

    Records that the service has already are passed over. The others decide nothing until its own devices have measured
    them.
    """
    with client(url, key) as service:
        done = service.import_records(_pieces(file))
    emit(done, json_output, f"{done['added']} records added, {done['known']} known before")


def _write(service: Client, workloads: Sequence[WorkloadLike], file: Path) -> int:
    """Write the whole file or none; the number of records, a line each after the header."""
    lines = 0
    with replaced(file) as out:
        for piece in service.export_records(workloads):
            lines += piece.count(b"\n")
            out.write(piece)
    return max(0, lines - 1)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        while piece := lines.read(PIECE):
            yield piece


COMMANDS = (export_records, import_records)
