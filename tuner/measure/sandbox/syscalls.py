"""A filter of system calls: what a candidate can never need ends its process, or is refused.

A kernel computes. It starts threads, but no process and no program, and sends signals to itself alone. The filter is
inherited by everything that the process loads, and cannot be taken off.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

ARCHITECTURE = 0xC000003E
"""AUDIT_ARCH_X86_64."""
FORK, VFORK, CLONE, CLONE3 = 57, 58, 56, 435
EXECVE, EXECVEAT, PTRACE, PROCESS_VM_WRITEV = 59, 322, 101, 311
KILL, TKILL, TGKILL, RT_SIGQUEUEINFO, RT_TGSIGQUEUEINFO, PIDFD_SEND_SIGNAL = 62, 200, 234, 129, 297, 424
MEMFD_CREATE, MEMFD_SECRET, SHMGET, MQ_OPEN, PRLIMIT64 = 319, 447, 29, 240, 302
"""Numbers of x86-64."""
ENDS = (FORK, VFORK, EXECVE, EXECVEAT, PTRACE, PROCESS_VM_WRITEV)
REFUSED = (TKILL, RT_SIGQUEUEINFO, RT_TGSIGQUEUEINFO, PIDFD_SEND_SIGNAL, MEMFD_CREATE, MEMFD_SECRET, SHMGET, MQ_OPEN)
"""The last four make memory that no limit counts."""
X32 = 0x40000000
CLONE_THREAD = 0x10000

SECCOMP, SET_MODE_FILTER, ALLOW_SPECULATION = 317, 1, 4
"""Seccomp's numbers. Without the flag older kernels slow each load after a store, which would change latencies."""
KILL_PROCESS, ALLOW = 0x80000000, 0x7FFF0000
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = 0, 4, 16
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the classic BPF."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_known() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() == "x86_64"


def restrict() -> None:
    """Filter the calls of this process from now on. Needs PR_SET_NO_NEW_PRIVS. Raises OSError if the kernel cannot."""
    code = _filter(os.getpid())
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = map(ctypes.c_long, (SECCOMP, SET_MODE_FILTER, ALLOW_SPECULATION))
    if libc.syscall(*arguments, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _filter(pid: int) -> bytes:
    # Without clone3 the C library uses clone, whose flags can be seen.
    code = [_load(ARCHITECTURE_AT), *_unless(EQUAL, ARCHITECTURE, KILL_PROCESS)]
    code += [_load(NUMBER_AT), *_if(AT_LEAST, X32, KILL_PROCESS), *_if(EQUAL, CLONE3, _error(errno.ENOSYS))]
    for number in ENDS:
        code += _if(EQUAL, number, KILL_PROCESS)
    for number in REFUSED:
        code += _if(EQUAL, number, _error(errno.EPERM))
    code += _by_argument(CLONE, ANY_BIT, CLONE_THREAD, KILL_PROCESS)
    for number in (KILL, TGKILL):
        code += _by_argument(number, EQUAL, pid, _error(errno.EPERM))
    # Of this process alone, which it calls 0.
    code += _by_argument(PRLIMIT64, EQUAL, 0, _error(errno.EPERM))
    return b"".join([*code, _return(ALLOW)])


def _if(test: int, value: int, result: int) -> list[bytes]:
    return [_jump(test, value, 0, 1), _return(result)]


def _unless(test: int, value: int, result: int) -> list[bytes]:
    return [_jump(test, value, 1, 0), _return(result)]


def _by_argument(number: int, test: int, value: int, otherwise: int) -> list[bytes]:
    """Allow the call if its first argument passes the test."""
    return [
        _jump(EQUAL, number, 0, 4),
        _load(ARGUMENT_AT),
        _jump(test, value, 0, 1),
        _return(ALLOW),
        _return(otherwise),
    ]


def _load(offset: int) -> bytes:
    return _jump(LOAD, offset, 0, 0)


def _return(value: int) -> bytes:
    return _jump(RETURN, value, 0, 0)


def _error(number: int) -> int:
    return 0x00050000 | number


def _jump(code: int, value: int, when: int, otherwise: int) -> bytes:
    """An instruction, and how many of the next ones are left out."""
    return struct.pack("=HBBI", code, when, otherwise, value)
