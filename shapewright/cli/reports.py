"""`shapewright report`: a job and all its figures as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapewright.cli import options
from shapewright.cli.finding import JOBS_OR_FILES, service_and_job
from shapewright.cli.output import as_json, emit
from shapewright.replacing import replaced
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from shapewright.report import ReportedJob


@click.command()
@click.argument("source", metavar="ID_OR_DIR", shell_complete=JOBS_OR_FILES)
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The file to write.",
)
@options.service
@as_json
def report(source: str, file: Path, url: str | None, key: str | None, json_output: bool) -> None:
    """Write a job and all its figures into one HTML file.

    For a job of the service, or the newest that `tune` recorded in a directory. The file opens anywhere, without the
    service and without a network.
    """
    from shapewright.report import render  # noqa: PLC0415  (keeps --help fast)

    job = _read(source, url, key)
    with replaced(file) as out:
        out.write(render(job).encode(errors="replace"))
    facts = {"file": str(file), "job_id": job.facts["id"], "state": job.facts["state"], "tasks": len(job.tasks)}
    emit(facts, json_output, f"{file}: job {job.facts['id']}, {job.facts['state']}, {job.facts['trials']} trials")


def _read(source: str, url: str | None, key: str | None) -> ReportedJob:
    """The job in a directory of that name, if there is one, or of that id. Raises InvalidInput, ServiceError."""
    from shapewright.report import from_directory, from_service  # noqa: PLC0415  (keeps --help fast)

    path = Path(source)
    if path.is_dir():
        return from_directory(path)
    if path.exists() or os.sep in source:
        raise InvalidInput("ID_OR_DIR", f"{source} is not a directory", "a job's id, or a directory of `tune`")
    with service_and_job(url, key, source) as (service, job_id):
        return from_service(service, job_id)


COMMANDS = (report,)
