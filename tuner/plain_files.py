"""Files that others wrote, read with care: of a pipe, a device or an endless file nothing is waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises OSError for anything else."""
    # A pipe that nobody writes to would be waited for as it is opened.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            # It may grow meanwhile: no more is read than one byte too many.
            content = b"" if found.st_size > most else file.read(most + 1)
    finally:
        os.close(descriptor)
    if max(found.st_size, len(content)) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return content


def is_folder(path: str | Path) -> bool:
    """Whether it is a folder. ``Path.is_dir`` raises where a folder above is closed, or the name too long."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    """Whether it is a file. ``Path.is_file`` raises where a folder above is closed, or the name too long."""
    return os.path.isfile(path)  # noqa: PTH113
