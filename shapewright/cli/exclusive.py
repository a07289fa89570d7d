"""The lock of a data directory: one `up` or one `tune` at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shapewright.cli.output import CommandFailed, ExitCode

LOCK = "up.lock"
LEFT_S = 10.0
"""How long what a killed process started may hold its lock."""
LOOK_S = 0.1


@contextmanager
def exclusive(directory: Path, who: str = "up", option: str = "--data-dir") -> Iterator[None]:
    """Hold the lock of the directory: another process is refused, with the one that holds it. It ends with the process.

    ``who``: the command that holds it, as the refusal of another names it. ``option``: chooses another directory.
    """
    handle = _opened(directory / LOCK, option)
    try:
        if not _locked(handle):
            pid, _, holder = _holder(handle)
            what = f"directory {directory} is in use by pid {pid} ({'another ' if holder == who else ''}{holder})"
            what = what if option != "--data-dir" else f"data {what}"
            raise CommandFailed(ExitCode.REFUSED, f"{what}; stop it, or choose another with {option}", field=option)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {who}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _opened(path: Path, option: str) -> int:
    try:
        # A link would have another file written to.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        problem = "is a link, which is not followed; remove it" if is_link else f"cannot be opened: {error.strerror}"
        raise CommandFailed(ExitCode.REFUSED, f"the lock file {path} {problem}", field=option) from None


def _locked(handle: int) -> bool:
    """Whether the lock is held now. That of a process that is gone is waited for: its children end a little later."""
    until = time.monotonic() + LEFT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pid = _holder(handle)[0]
            if (pid.isdecimal() and Path("/proc", pid).exists()) or time.monotonic() > until:
                return False
        time.sleep(LOOK_S)


def _holder(handle: int) -> tuple[str, str, str]:
    pid, blank, who = os.pread(handle, 100, 0).decode(errors="replace").strip().partition(" ")
    return pid, blank, who or "up"
