"""Files written whole or not at all, in place of what is there: no link is followed, no other file is written to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced(file: Path) -> Iterator[BinaryIO]:
    """What is written inside becomes the file, in one step. A link there is replaced, not followed.

    A device or a pipe is written to as it is. Raises OSError that names the file.
    """
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        if file.exists() and not file.is_file():
            with file.open("wb") as out:
                yield out
            return
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(handle, "wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        # That of a full disk names no file by itself.
        if error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise
