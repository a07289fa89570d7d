"""What the code of a library calls: TVM's runtime where it is installed, else what stands for it here.

TVM's wheel is three hundred megabytes of compiler and three of runtime. Libraries call three functions of it: for a
workspace, to give it back, and to run the parts of a loop on several threads. Without TVM these are Python's. They take
about a microsecond each, and a parallel loop some tens: it waits for threads of Python to wake up.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from shapewright.callers import pool
from tuner.program.job.task import MAX_THREADS

ALIGNMENT = 64
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
"""Device's type and id, bytes, the code and the bits of a dtype that is a hint; the workspace, or null."""
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
PART = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""A part of a loop: its number, the group that it is of, the loop's data; 0, or what is not."""
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, PART, ctypes.c_void_p, ctypes.c_int)
"""The parts of a loop, its data, and how many parts there shall be; 0: as many as there are threads."""


class Group(ctypes.Structure):
    """TVMParallelGroupEnv: a handle of barriers, which no library of ours has, and the number of parts."""

    _fields_ = (("barrier", ctypes.c_void_p), ("count", ctypes.c_int32))


def provide() -> None:
    """See to it that a shared object finds what it calls once it is loaded."""
    if _tvm() is None:
        _stand_in()


@cache
def _tvm() -> Any:
    """TVM's runtime, loaded: a library of some megabytes, no more of TVM. None where there is none."""
    spec = None
    with suppress(ModuleNotFoundError):  # where a finder refuses it
        spec = importlib.util.find_spec("tvm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        runtime = Path(folder) / "lib" / "libtvm_runtime.so"
        if runtime.is_file():
            import tvm_ffi  # noqa: F401, PLC0415 - libtvm_ffi.so, which the runtime needs

            return ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return None


class Threads:
    """Runs the parts of loops. One loop at a time has the threads: whoever comes while it runs computes alone, and so
    does a process whose threads are gone, which a fork leaves behind."""

    def __init__(self) -> None:
        # Threads are started as they are needed.
        self._busy, self._pool = threading.Lock(), ThreadPoolExecutor(MAX_THREADS, "shapewright-loop")

    def run(self, part: Callable[..., int], data: int | None, count: int) -> int:
        """0 if every part has returned 0, else -1."""
        group = Group(None, count)
        at = ctypes.addressof(group)
        if count == 1 or not self._busy.acquire(blocking=False):
            failures = [part(number, at, data) for number in range(count)]
            return -1 if any(failures) else 0
        try:
            others = [self._begin(part, number, at, data) for number in range(1, count)]
            # All are waited for: they read the group.
            failures = [part(0, at, data), *(other.result() for other in others)]
            return -1 if any(failures) else 0
        finally:
            self._busy.release()

    def _begin(self, part: Callable[..., int], *arguments: Any) -> Future[int]:
        try:
            return self._pool.submit(part, *arguments)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            done = Future[int]()
            done.set_result(part(*arguments))
            return done


threads = Threads()


def _start_anew() -> None:
    global threads  # noqa: PLW0603 - of this process
    threads = Threads()


os.register_at_fork(after_in_child=_start_anew)


@cache
def _stand_in() -> tuple[Any, ...]:
    """Stand in for the runtime; what is called, which has to be kept."""
    from tvm_ffi.libinfo import find_libtvm_ffi  # noqa: PLC0415 - for those who load libraries

    c_library = ctypes.CDLL(None)
    aligned_alloc, free = c_library.aligned_alloc, c_library.free
    aligned_alloc.argtypes, aligned_alloc.restype = (ctypes.c_size_t, ctypes.c_size_t), ctypes.c_void_p
    free.argtypes, free.restype = (ctypes.c_void_p,), None

    def allocate(_type: int, _id: int, size: int, _code: int, _bits: int) -> int | None:
        return aligned_alloc(ALIGNMENT, (size // ALIGNMENT + 1) * ALIGNMENT)  # type: ignore[no-any-return]

    def release(_type: int, _id: int, memory: int | None) -> int:
        free(memory)
        return 0

    def launch(part: Callable[..., int], data: int | None, count: int) -> int:
        return threads.run(part, data, count if count > 0 else max(1, pool.threads))

    called: dict[str, Any] = {"AllocWorkspace": ALLOCATE(allocate), "FreeWorkspace": RELEASE(release)}
    called["ParallelLaunch"] = LAUNCH(launch)
    register = ctypes.CDLL(find_libtvm_ffi()).TVMFFIEnvModRegisterContextSymbol
    register.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    for name, function in called.items():
        if register(f"__TVMBackend{name}".encode(), ctypes.cast(function, ctypes.c_void_p)):
            raise RuntimeError(f"TVM's loader does not take {name}")
    return tuple(called.values())
