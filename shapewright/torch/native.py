"""The machine code that libraries in PyTorch run on (native.c), compiled when it is first needed.

**Loops on PyTorch's own threads.** A pool beside PyTorch's disturbs it and is disturbed: OpenMP's threads spin for some
milliseconds after their work, on the cores that the other pool's threads want. All loops of a chain of calls share one
parallel region of OpenMP: its threads stay awake between them and take parts as they come. Where they come late, since
others have the cores, the caller does the work, and leaves the next regions out.

Whoever compiles models for a CPU by Inductor has a compiler. Where there is none, or PyTorch has other threads than
OpenMP's, libraries have TVM's pool and are called one by one.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import which

import torch

from shapewright import forks
from shapewright.library import Library

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 60.0
_lock = forks.lock()


def share_threads(library: Library) -> bool:
    """Have the loops of ``library`` run on PyTorch's threads; whether they do. If not they have a pool of their own."""
    code = native() if library.threads > 1 else None
    if code is not None:
        code.expect_threads(library.threads)
        library.launch_by(address_of(code, "launch"))
    return code is not None


def address_of(code: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(code[name], ctypes.c_void_p).value
    assert address is not None
    return address


def chain_runner(code: ctypes.CDLL) -> Callable[..., int]:
    """``run_chain`` of the code."""
    number, place = ctypes.c_int, ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(number, place, number, number, *[place] * 5)
    return signature(address_of(code, "run_chain"))


def native() -> ctypes.CDLL | None:
    """The code; None where PyTorch has none of OpenMP's, or nothing compiles."""
    # Once for all threads: a loop finds its team by a variable of the code.
    with _lock:
        return _compiled()


@cache
def _compiled() -> ctypes.CDLL | None:
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    compiler = next(filter(None, map(which, COMPILERS)), None)
    if compiler is None:
        logger.info("no C compiler is on the PATH: tuned libraries have a pool beside PyTorch's, and are called singly")
        return None
    with tempfile.TemporaryDirectory(prefix="shapewright-native-") as folder:
        file = Path(folder) / "native.so"
        line = [compiler, "-O2", "-shared", "-fPIC", "-o", str(file), str(SOURCE)]
        try:
            subprocess.run(line, check=True, capture_output=True, text=True, timeout=COMPILE_S)
            # PyTorch has loaded OpenMP for all to see. Never unloaded: libraries have its address.
            return ctypes.CDLL(str(file))
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1:]
            logger.warning("tuned libraries have a pool beside PyTorch's, and are called singly: %s", "".join(said))
            return None
