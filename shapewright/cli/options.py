"""Options that several commands share."""

from __future__ import annotations

import math
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shapewright import defaults
from shapewright.cli.output import CommandFailed, ExitCode, say

if TYPE_CHECKING:
    from tuner.program.job.jobspec import JobSpec
    from tuner.storage.sql import Storage

Command = TypeVar("Command", bound=Callable[..., Any])

DATA = frozenset({"tuning.db", "client.key", "up.lock", "libraries", "calibrations", "logs"})
"""What a data directory holds."""
AUTO = "auto"
LONGEST_S = 1e9
"""Seconds: the longest wait that can be requested, about thirty years."""


class Directory(click.Path):
    """A directory, existing or to be created. An empty text, as an unset variable gives it, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name of a directory must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(click.Path):
    """A file to be written. An empty text is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name of a file must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A time to wait: positive and finite."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=LONGEST_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail("nan is not a number of seconds", param, ctx)
        return seconds


class Budgeted(Seconds):
    """Seconds of a budget, or AUTO: as many as are recommended."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return AUTO if value == AUTO else super().convert(value, param, ctx)


data_dir = click.option(
    "--data-dir",
    type=Directory(),
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
    type=Directory(),
    metavar="DIR",
    help="Where the library's files go.",
)
processes = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve the API together, for machines with cores to spare.",
)
LOG_FORMAT = "SHAPEWRIGHT_LOG_FORMAT"
log_format = click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    envvar=LOG_FORMAT,
    help="Log lines for people, or one JSON object each.",
)
CALIBRATION = "SHAPEWRIGHT_CALIBRATION"


def calibration(text: str) -> Callable[[Command], Command]:
    """Gives a command ``--calibration`` (on or off), which ``text`` explains."""
    kinds = click.Choice(("on", "off"))
    return click.option("--calibration", type=kinds, default="on", show_default=True, envvar=CALIBRATION, help=text)


service_url = click.option("--url", help="The service [default: SHAPEWRIGHT_URL, or http://127.0.0.1:8321].")
job_file = click.argument("job", metavar="JOB.yaml", type=click.Path(path_type=Path, dir_okay=False, exists=True))


def service(command: Command) -> Command:
    """Gives a command ``--url`` and ``--key``, for `client`."""
    command = click.option("--key", help="An API key [default: SHAPEWRIGHT_API_KEY, or DATA_DIR/client.key].")(command)
    return service_url(command)


def read_job(path: Path) -> tuple[JobSpec, dict[str, Any]]:
    """A checked job and its document. Raises InvalidInput, OSError."""
    from tuner.program.job.documents import read_yaml  # noqa: PLC0415  (keeps --help fast)
    from tuner.program.job.jobspec import parse_job  # noqa: PLC0415

    spec = parse_job(read_yaml(path.read_bytes()))
    return spec, spec.source


def database(url: str | None, directory: Path | None) -> str:
    """The database's URL: the option's, or the SQLite file of the data directory, which is created if missing."""
    if url is None:
        private(directory or defaults.data_dir())
    return url or defaults.database_url(directory)


def open_database(url: str | None, directory: Path | None) -> Storage:
    """The tuning database, checked; a missing one is not created. Raises StorageUnavailable, InvalidInput."""
    from tuner.storage.sql import open_storage  # noqa: PLC0415
    from tuner.storage.sql.engine import parse_url  # noqa: PLC0415

    text = url or defaults.database_url(directory)
    parsed = parse_url(text)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        remedy = "run `shapewright db upgrade`, or name another with --data-dir or --database-url"
        raise CommandFailed(ExitCode.UNREACHABLE, f"there is no database at {parsed.database}; {remedy}")
    storage = open_storage(text)
    storage.check()
    return storage


def private(directory: Path) -> Path:
    """A writable data directory that is its owner's alone, because it holds keys, records and logs.

    One that others could enter is closed to them if it is a data directory or empty; any other is refused.
    """
    writable(directory, "--data-dir", 0o700)
    status = directory.stat()
    if not status.st_mode & 0o077:
        return directory
    if status.st_uid != os.geteuid():
        say(f"the data directory {directory} belongs to another user, and may be open to others")
    elif status.st_mode & stat.S_ISVTX or not _is_data_directory(directory):
        problem = f"the data directory {directory} is open to others and holds other files"
        remedy = f"name one for this alone with --data-dir, or chmod 700 {shlex.quote(str(directory))}"
        raise CommandFailed(ExitCode.REFUSED, f"{problem}; {remedy}", field="--data-dir")
    else:
        directory.chmod(0o700)
        say(f"the data directory {directory} was open to others; it is closed to them now (mode 700)")
    return directory


def _is_data_directory(directory: Path) -> bool:
    names = {each.name for each in directory.iterdir() if not each.name.startswith(".")} - {"lost+found"}
    return not names or not names.isdisjoint(DATA)


def writable(directory: Path, option: str, mode: int = 0o777) -> Path:
    """The directory, created if missing. Raises CommandFailed if it is not writable; ``option`` chooses another."""
    try:
        directory.mkdir(mode, parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise not_writable(directory, option, error) from None
    return directory


@contextmanager
def writing(directory: Path, option: str) -> Iterator[None]:
    """Failures to write inside become those of ``option``: an error may name a temporary file."""
    try:
        yield
    except OSError as error:
        raise not_writable(directory, option, error) from error


def not_writable(directory: Path, option: str, error: OSError) -> CommandFailed:
    """The failure of a command that cannot write where ``option`` says."""
    message = f"cannot write to the directory {directory}: {error.strerror}; choose another with {option}"
    return CommandFailed(ExitCode.REFUSED, message, field=option)
