"""The defaults of four settings: an environment variable each, and a value where it is not set."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

from tuner.errors import InvalidInput
from tuner.plain_files import read_plain

DEFAULT_PORT = 8321
TRACKER_PORT = 9190
MAX_KEY = 64 << 10
"""Bytes of the key file."""


def service_url() -> str:
    """``SHAPEWRIGHT_URL``, or the address of `shapewright up`."""
    return os.environ.get("SHAPEWRIGHT_URL") or f"http://127.0.0.1:{DEFAULT_PORT}"


def data_dir() -> Path:
    """``SHAPEWRIGHT_DATA_DIR``, or ``~/.shapewright``: independent of the working directory.

    A user without a home has one in the temporary folder, which bears the number of the user.
    """
    given = os.environ.get("SHAPEWRIGHT_DATA_DIR")
    return Path(given) if given else home() / ".shapewright"


def home() -> Path:
    """The user's home; a folder of the user's own in the temporary one where there is none, as in a container whose
    user has no entry in its passwd file."""
    try:
        found = Path.home()
    except RuntimeError:
        found = Path()
    return found if found.is_absolute() else without_home()


def ensure_home() -> None:
    """Have HOME name one: TVM is not loaded without. For processes that are this package's own."""
    if not os.environ.get("HOME"):
        os.environ["HOME"] = str(home())


@cache
def without_home() -> Path:
    """One folder for all processes of the user, unless somebody else was there first: what it holds is executed."""
    path = Path(tempfile.gettempdir()) / f"shapewright-home-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(0o700)
    status = path.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return path if is_own else Path(tempfile.mkdtemp(prefix="shapewright-home-"))


def expanded(path: str | Path) -> Path:
    """``path`` with its ``~`` as the user's home; as it is where that is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def key_file(directory: Path | None = None) -> Path:
    """Where `shapewright up` leaves its first key."""
    return (directory or data_dir()) / "client.key"


def api_key(directory: Path | None = None) -> str | None:
    """``SHAPEWRIGHT_API_KEY``, or the content of the key file; None if there is neither. Raises BadEnvironment."""
    if key := os.environ.get("SHAPEWRIGHT_API_KEY"):
        return key
    file = key_file(directory)
    try:
        return read_plain(file, MAX_KEY).decode().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        from shapewright.errors import BadEnvironment  # noqa: PLC0415 - where there is one

        problem = f"the key in it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise BadEnvironment(str(file), problem, "set SHAPEWRIGHT_API_KEY, or SHAPEWRIGHT_DATA_DIR") from None


def database_url(directory: Path | None = None) -> str:
    """``SHAPEWRIGHT_DATABASE_URL``, or the SQLite file of the data directory."""
    if url := os.environ.get("SHAPEWRIGHT_DATABASE_URL"):
        return url
    return sqlite_url((directory or data_dir()) / "tuning.db")


def sqlite_url(file: Path) -> str:
    """The URL of a SQLite file, whatever characters its path has. Raises InvalidInput for what is no text."""
    path = str(file.resolve())
    try:
        return f"sqlite:///{quote(path)}"
    except UnicodeEncodeError:
        problem = f"the path {os.fsencode(path)!r} is not text in UTF-8"
        raise InvalidInput("", problem, "choose another folder") from None
