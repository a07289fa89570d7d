"""What the code of a library calls: TVM's runtime where it is installed, else what one thread needs of it.

TVM's wheel is three hundred megabytes of compiler and three of runtime. A library of one thread calls no more than two
functions: for a workspace, and to give it back. Without TVM these are Python's, which take about a microsecond each.
"""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from shapewright.extras import MissingExtra

PARALLEL = b"__TVMBackendParallelLaunch"
"""The slot that the loader fills in a library with parallel loops."""
ALIGNMENT = 64
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
"""Device's type and id, bytes, the code and the bits of a dtype that is a hint; the workspace, or null."""
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


def provide(binary: bytes) -> None:
    """See to it that ``binary``, a shared object, finds what it calls once it is loaded. Raises MissingExtra."""
    if _tvm() is not None:
        return
    if PARALLEL in binary:
        raise MissingExtra("tune", "a library for several threads runs on TVM's threads")
    _workspaces()


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


@cache
def _workspaces() -> tuple[Any, ...]:
    """Hand out workspaces in the runtime's place; what is called, which has to be kept."""
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

    called = {"AllocWorkspace": ALLOCATE(allocate), "FreeWorkspace": RELEASE(release)}
    register = ctypes.CDLL(find_libtvm_ffi()).TVMFFIEnvModRegisterContextSymbol
    register.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    for name, function in called.items():
        if register(f"__TVMBackend{name}".encode(), ctypes.cast(function, ctypes.c_void_p)):
            raise RuntimeError(f"TVM's loader does not take {name}")
    return tuple(called.values())
