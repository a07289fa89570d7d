"""Rotating the files that take the output of other processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_BYTES = 10 * 2**20
"""A log that is larger is rotated."""
KEPT = 3
"""Earlier logs that are kept: NAME.log.1 is the newest of them."""


def rotate(path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> bool:
    """Move the content of a log that has grown too large to ``NAME.log.1``; whether it was.

    The file itself is emptied, not renamed: a process that appends to it goes on in it. What it writes between the copy
    and the emptying, microseconds apart, is lost. A full disk costs the oldest logs: nothing is raised.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        for number in range(kept - 1, 0, -1):
            earlier = _numbered(path, number)
            if earlier.exists():
                earlier.replace(_numbered(path, number + 1))
        shutil.copyfile(path, _numbered(path, 1))
    except FileNotFoundError:
        return False
    except OSError:
        _numbered(path, 1).unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
