"""What makes a process one that Linux refuses the tiles of AMX, on a CPU that says it is a Sapphire Rapids. Loads no
compiler: devices have none."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

from tuner.measure.sandbox import syscalls
from tuner.program.target.cpu_names import features_of
from tuner.program.target.tiles import PERMISSION

PR_SET_NO_NEW_PRIVS = 38
PROCESSOR = Path("/proc/cpuinfo")


def refuse(error: int) -> None:
    """From now on the call that asks for tiles answers so; others of its number do not."""
    number, asks, _ = PERMISSION
    code = [
        (syscalls.LOAD, 0, 0, syscalls.NUMBER_AT), (syscalls.EQUAL, 0, 3, number),
        (syscalls.LOAD, 0, 0, syscalls.ARGUMENT_AT), (syscalls.EQUAL, 0, 1, asks),
        (syscalls.RETURN, 0, 0, 0x00050000 | error), (syscalls.RETURN, 0, 0, syscalls.ALLOW),
    ]  # fmt: skip
    instructions = b"".join(struct.pack("=HBBI", test, when, otherwise, of) for test, when, otherwise, of in code)
    program, libc = syscalls._Program(len(code), instructions), ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    arguments = map(ctypes.c_long, (syscalls.SECCOMP, syscalls.SET_MODE_FILTER, 0))
    assert libc.syscall(*arguments, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())


def say_sapphire_rapids() -> None:
    read, text = Path.read_text, f"flags\t\t: {' '.join(features_of('sapphirerapids'))}\n"

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        return text if path == PROCESSOR else read(path, *args, **kwargs)

    Path.read_text = read_text  # type: ignore[method-assign, assignment]
