"""Failures of the machine, which say nothing of the candidate that it was busy with."""

from __future__ import annotations

import errno

from tuner.records import ErrorKind

_NUMBERS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM),
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
    }
)
_TEXTS = (
    *("No space left on device", "Disk quota exceeded"),
    *("MemoryError", "Unable to allocate", "Cannot allocate memory", "std::bad_alloc", "out of memory"),
)
"""What compilers and loaders say of it, who raise errors of their own."""


def failure_kind(error: BaseException, otherwise: ErrorKind) -> ErrorKind:
    """MACHINE if ``error`` tells that memory, a disk or a process was not to be had; else ``otherwise``."""
    is_machine = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _NUMBERS)
        or any(text in str(error) for text in _TEXTS)
    )
    return ErrorKind.MACHINE if is_machine else otherwise
