"""Whether Linux lets this process use the tiles of AMX: a CPU may have them, and a container, a kernel or a hypervisor
not. A process asks once; its threads, and processes that it forks, have the answer of it."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Collection, Mapping
from functools import cache

log = logging.getLogger(__name__)

PERMISSION = (158, 0x1023, 18)
"""The system call by which a process asks: arch_prctl(ARCH_REQ_XCOMP_PERM, tile data)."""
REFUSED = "Linux does not let this process use the tiles of AMX"
TILES = "amx_"
"""How features begin that are instructions on tiles."""
FILTERED = "allow arch_prctl in the container's filter of system calls (seccomp)"
REMEDIES: Mapping[int, str] = {
    errno.EPERM: FILTERED,
    errno.EACCES: FILTERED,
    errno.ENOSYS: FILTERED,
    errno.EINVAL: "run Linux 5.16 or later",
    errno.EOPNOTSUPP: "have Linux and the hypervisor enable the state of AMX's tiles (XSAVE)",
    errno.ENOSPC: "give threads that handle signals on a stack of their own one of getauxval(AT_MINSIGSTKSZ) bytes",
}


@cache
def refusal() -> str:
    """Why this process may not use tiles, and the remedy; empty if it may. Said in the log the first time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, PERMISSION)) == 0:
        return ""
    number = ctypes.get_errno()
    text = f"{REFUSED} (arch_prctl says {os.strerror(number)}): {REMEDIES.get(number, FILTERED)}"
    log.warning("%s. Until then kernels are those of AVX-512", text)
    return text


def is_of_tiles(feature: str) -> bool:
    """Whether a feature is instructions on tiles."""
    return feature.startswith(TILES)


def usable(flags: Collection[str]) -> frozenset[str]:
    """Of the features of a CPU those that this process may use."""
    tiles = set(filter(is_of_tiles, flags))
    return frozenset(flags) - (tiles if tiles and refusal() else set())
