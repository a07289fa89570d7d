"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shapewright import defaults
from shapewright.cli.output import CommandFailed, ExitCode

if TYPE_CHECKING:
    from tuner.jobspec import JobSpec
    from tuner.storage import Storage

Command = TypeVar("Command", bound=Callable[..., Any])

data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="SHAPEWRIGHT_DATA_DIR",
    help="Where the database, the first key and the logs are [default: ~/.shapewright].",
)
database_url = click.option(
    "--database-url",
    envvar="SHAPEWRIGHT_DATABASE_URL",
    help="sqlite:///FILE or postgresql://USER@HOST/NAME [default: DATA_DIR/tuning.db].",
)
output = click.option(
    "-o",
    "--output",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the library's files go.",
)
job_file = click.argument("job", metavar="JOB.yaml", type=click.Path(path_type=Path, dir_okay=False, exists=True))


def service(command: Command) -> Command:
    """Gives a command ``--url`` and ``--key``, for `client`."""
    command = click.option("--key", help="An API key [default: SHAPEWRIGHT_API_KEY, or DATA_DIR/client.key].")(command)
    return click.option("--url", help="The service [default: SHAPEWRIGHT_URL, or http://127.0.0.1:8321].")(command)


def read_job(path: Path) -> tuple[JobSpec, dict[str, Any]]:
    """A checked job and its document. Raises InvalidInput, OSError."""
    from tuner.documents import read_yaml  # noqa: PLC0415  (keeps --help fast)
    from tuner.jobspec import parse_job  # noqa: PLC0415

    spec = parse_job(read_yaml(path.read_bytes()))
    return spec, spec.source


def database(url: str | None, directory: Path | None) -> str:
    """The database's URL: the option's, or the SQLite file of the data directory, which is made if it is missing."""
    if url is None:
        writable(directory or defaults.data_dir())
    return url or defaults.database_url(directory)


def open_database(url: str | None, directory: Path | None) -> Storage:
    """The tuning database, checked. Raises StorageUnavailable, InvalidInput."""
    from tuner.storage.sql import open_storage  # noqa: PLC0415

    storage = open_storage(database(url, directory))
    storage.check()
    return storage


def writable(directory: Path, option: str = "--data-dir") -> Path:
    """The directory, made if it is missing. Fails where nothing can be written there; ``option`` names another."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        message = f"cannot write to the directory {directory}: {error.strerror}; choose another with {option}"
        raise CommandFailed(ExitCode.REFUSED, message, field=option) from None
    return directory
