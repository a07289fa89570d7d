"""Failures of the machine, which say nothing of the candidate that it was busy with."""

from __future__ import annotations

import errno
from pathlib import Path

from tuner.errors import MachineFailed
from tuner.records import ErrorKind

_NUMBERS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
        # A folder that was removed or closed, a program that is gone.
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM),
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
    }
)
VMSTAT = Path("/proc/vmstat")
MACHINE = "the machine failed: "
"""The beginning of a problem's text where the machine is to blame for it."""
_TEXTS = (
    MACHINE,
    *("No space left on device", "Disk quota exceeded"),
    *("MemoryError", "Unable to allocate", "Cannot allocate memory", "std::bad_alloc", "out of memory"),
)
"""Texts of compilers and loaders that blame the machine, in errors of their own."""


def failure_kind(error: BaseException, otherwise: ErrorKind) -> ErrorKind:
    """MACHINE if ``error`` says that memory, a disk or a process was not to be had; else ``otherwise``."""
    is_machine = (
        isinstance(error, (MemoryError, MachineFailed))
        or (isinstance(error, OSError) and error.errno in _NUMBERS)
        or any(text in str(error) for text in _TEXTS)
    )
    return ErrorKind.MACHINE if is_machine else otherwise


def told(error: BaseException) -> str:
    """The error in words that ``failure_kind`` knows again."""
    text = f"{type(error).__name__}: {error}"
    return MACHINE + text if failure_kind(error, ErrorKind.WRONG) is ErrorKind.MACHINE else text


def oom_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory since it was started; 0 where it does
    not say."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
