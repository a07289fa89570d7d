"""Copies of a whole database, made while it is in use, and a database made from such a copy.

A copy of SQLite is a SQLite file, made by its online backup; one of PostgreSQL is an archive of pg_dump, whose programs
must be installed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tuner.errors import InvalidInput, ShapewrightError
from tuner.storage.errors import Conflict, StorageUnavailable
from tuner.storage.sql.engine import connect, parse_url
from tuner.storage.sql.migrate import current, known

BUSY_S = 30.0
PROGRAM_S = 6 * 3600.0
"""The longest that a program of PostgreSQL may take."""
SQLITE_MAGIC = b"SQLite format 3\0"


class BackupFailed(ShapewrightError):
    """The copy could not be made or used; nothing was left half-written."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy: where it is, its size, and the revision of its schema."""

    path: Path
    bytes: int
    revision: str


def backup(url: str, path: Path) -> Copied:
    """Copy the database at ``url`` to ``path``, which must not exist.

    The copy is one consistent state; others may write meanwhile. Raises InvalidInput, StorageUnavailable, BackupFailed.
    """
    parsed = parse_url(url)
    if path.exists():
        raise InvalidInput("file", f"{path} exists already", "name a file that does not")
    if not path.absolute().parent.is_dir():
        raise InvalidInput("file", f"there is no directory {path.absolute().parent}", "make it first")
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise StorageUnavailable(f"database {parsed}: there is no such file; name another")
    revision = _revision(url)
    part = path.with_name(f"{path.name}.part")
    _complete(part, path, lambda: _copy_out(parsed, part))
    return Copied(path, path.stat().st_size, revision)


def restore(path: Path, url: str, *, replace: bool = False) -> str:
    """Make the database at ``url`` from a copy; the revision of its schema.

    A database that holds something is refused unless ``replace``. Nothing may use it meanwhile. Raises InvalidInput,
    Conflict, StorageUnavailable, BackupFailed.
    """
    parsed = parse_url(url)
    if not path.is_file():
        raise InvalidInput("file", f"there is no file {path}", "a file that `shapewright db backup` wrote")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    with path.open("rb") as file:
        if (file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC) != is_sqlite:
            kind = "a copy of SQLite" if not is_sqlite else "no copy of SQLite"
            raise InvalidInput("file", f"{path} is {kind}", "a copy of a database of the same kind as --database-url")
    if not replace and _holds_something(url, parsed):
        raise Conflict(f"database {parsed}: it holds data; give --replace to lose that, or name another database")
    if is_sqlite:
        _restore_sqlite(path, Path(str(parsed.database)))
    else:
        options = ("--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error")
        _run("pg_restore", parsed, [*options, f"--dbname={_without_password(parsed)}", str(path)])
    return _revision(url)


# -- SQLite -----------------------------------------------------------------------------------------------------------
def _copy_sqlite(source: Path, part: Path) -> None:
    try:
        # Never creates the source, which exists: its revision was read.
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)) as reader,
            closing(sqlite3.connect(part)) as writer,
        ):
            # In one step, and so one consistent view: with its log ahead, a database takes writes meanwhile. A copy in
            # several steps would begin anew after each of them.
            reader.backup(writer, pages=-1)
            # One file: what reads the copy needs no directory that it may write to.
            writer.execute("PRAGMA journal_mode = DELETE")
        _check_sqlite(part)
    except sqlite3.Error as error:
        raise BackupFailed(f"{part}: {error}; make sure that the disk has room for a copy of {source}") from error


def _check_sqlite(path: Path) -> None:
    """Raises BackupFailed unless every page of a file is sound and its schema is one of this version or earlier."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            (result,) = reader.execute("PRAGMA quick_check(1)").fetchone()
            revision = reader.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise BackupFailed(f"{path} is no copy of a tuning database: {error}") from error
    if result != "ok":
        raise BackupFailed(f"{path} is damaged: {result}")
    if revision is None or revision[0] not in known():
        raise BackupFailed(f"{path} has a schema that this version does not know: update Shapewright on this machine")


def _restore_sqlite(path: Path, database: Path) -> None:
    part = database.with_name(f"{database.name}.part")

    def copy() -> None:
        shutil.copyfile(path, part)
        _check_sqlite(part)

    _complete(part, database, copy)
    # They belong to the file that was replaced: SQLite would take its pages from them.
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)


# -- PostgreSQL -------------------------------------------------------------------------------------------------------
def _run(program: str, url: URL, arguments: Sequence[str]) -> None:
    """Run a program of PostgreSQL. The password goes in its environment: everyone can read a command line."""
    result = shutil.which(program)
    if result is None:
        remedy = "install PostgreSQL's client programs of the server's version, or run it where they are"
        raise BackupFailed(f"{program} is not on this machine's PATH; {remedy}")
    environment = dict(os.environ)
    if url.password is not None:
        environment["PGPASSWORD"] = str(url.password)
    line = [result, "--no-password", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    if done.returncode != 0:
        raise BackupFailed(f"{program} failed: {done.stderr.strip()[-1000:]}")


def _without_password(url: URL) -> str:
    """The URL as PostgreSQL's own programs take it."""
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    return plain.render_as_string(hide_password=False)


# -- both -------------------------------------------------------------------------------------------------------------
def _copy_out(url: URL, part: Path) -> None:
    if url.get_backend_name() == "sqlite":
        _copy_sqlite(Path(str(url.database)), part)
    else:
        options = ("--format=custom", "--no-owner", f"--file={part}")
        _run("pg_dump", url, [*options, f"--dbname={_without_password(url)}"])


def _complete(part: Path, path: Path, write: Callable[[], None]) -> None:
    """Write ``part``, make sure that it is on the disk, and give it its name: there is a whole file, or none."""
    part.unlink(missing_ok=True)
    try:
        write()
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        remedy = "make sure that it can be written and that the disk has room"
        raise BackupFailed(f"{part}: {error.strerror}; {remedy}") from error
    finally:
        part.unlink(missing_ok=True)


def _revision(url: str) -> str:
    """The revision of a database's schema. Raises StorageUnavailable if it has none."""
    database = connect(url)
    try:
        if (revision := current(database)) is None:
            raise StorageUnavailable(f"database {database.engine.url}: it is empty; run `shapewright db upgrade`")
        return revision
    finally:
        database.engine.dispose()


def _holds_something(url: str, parsed: URL) -> bool:
    if parsed.get_backend_name() == "sqlite":
        path = Path(str(parsed.database))
        return path.exists() and path.stat().st_size > 0
    database = connect(url)
    try:
        return current(database) is not None
    finally:
        database.engine.dispose()
