"""`shapewright check`: is a library whole, right on this machine, and no slower than another."""

from __future__ import annotations

from pathlib import Path

import click

from shapewright import extras
from shapewright.cli import options
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, quiet_stdout
from tuner.errors import InvalidInput

LIBRARY = click.Path(path_type=Path, exists=True)
ARCHIVE = b"PK"
"""How a ZIP archive begins, which a snapshot is."""


@click.command()
@click.argument("directory", metavar="DIR", type=LIBRARY)
@click.option("--against", type=LIBRARY, metavar="DIR", help="A library that it must not be slower than.")
@click.option(
    "--seconds", type=options.Seconds(), default=30.0, show_default=True, help="What the comparison may take, about."
)
@as_json
def check(*, directory: Path, against: Path | None, seconds: float, json_output: bool) -> None:
    """Check a library of `pull`, `tune -o` or `snapshot`.

    Whether its files are whole, whether it computes what the NumPy reference does at ragged shapes, in and beyond its
    range, without touching the memory around its operands; and with --against whether it is slower than another one,
    timed in turns at the instances that it was tuned for. The exit code is 1 if it is not whole, wrong or slower. DIR
    may be a snapshot, or a directory of `pull JOB_ID` or `tune -o`: all libraries in its folders are checked. Folders
    that are hidden, links or another user's are not entered.
    """
    extras.require("tune")
    from shapewright.checking import Checker  # noqa: PLC0415  (TVM)
    from shapewright.snapshot import Snapshot  # noqa: PLC0415  (keeps --help fast)
    from shapewright.snapshot.writing import library_folders  # noqa: PLC0415
    from tuner.library.package import MANIFEST, read_files  # noqa: PLC0415

    if directory.is_file() and not _is_archive(directory):
        remedy = "give a directory of `pull` or `tune -o`, or a snapshot; `shapewright explain` checks a job file"
        raise InvalidInput("DIR", f"{directory} is no library and no snapshot", remedy)
    folders = library_folders(directory)
    if against is not None and (len(folders) != 1 or not (against / MANIFEST).is_file()):
        raise InvalidInput("--against", "compares two directories of one library each", "as `pull` writes them")
    beside = (str(against), read_files(against)) if against is not None else None
    with quiet_stdout(), Checker(seconds) as checker:
        checked = [checker.check(str(folder), read_files(folder), beside) for folder in folders]
        if directory.is_file():
            checked = checker.check_snapshot(Snapshot(directory))
    if not checked:
        raise InvalidInput("DIR", f"{directory} has no library", "a directory of `pull` or `tune -o`, or a snapshot")
    document = {"good": all(each.is_good for each in checked), "libraries": [each.to_json() for each in checked]}
    text = "\n".join(map(str, checked))
    if not document["good"]:
        raise CommandFailed(ExitCode.JOB_FAILED, text, result=document)
    emit(document, json_output, text)


def _is_archive(file: Path) -> bool:
    """Whether it begins as a snapshot does, damaged or not. Raises InvalidInput."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(ARCHIVE)) == ARCHIVE
    except OSError as error:
        raise InvalidInput("DIR", f"{file} cannot be read: {error.strerror or error}", "its permissions") from error


COMMANDS = (check,)
