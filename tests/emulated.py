"""Machine code for AArch64, run on this machine by an emulator of that CPU, QEMU.

The emulator has a program of its own (data/emulated_call.c) load the shared object and call it once, with operands that
lie in their memory as they do here: guard regions, alignment and all.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm.libinfo
import tvm_ffi.libinfo
from numpy.typing import NDArray

from tuner.library.package import ENTRY

Array = NDArray[Any]
TOOLS = {"aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross", "qemu-aarch64": "qemu-user"}
"""Debian packages by the command that is wanted of them."""
SYSROOT = "/usr/aarch64-linux-gnu"
"""Where Debian's packages put that architecture's C library."""
SOURCE = Path(__file__).parent / "data" / "emulated_call.c"
DLPACK = {"i": 0, "u": 1, "f": 2, "b": 6}
"""Codes of dtypes by NumPy's kind of them."""
BFLOAT = 4


def caller(folder: Path) -> Path:
    """The program that calls kernels, compiled in ``folder``; skips where there is no compiler or no emulator."""
    missing = [packages for command, packages in TOOLS.items() if shutil.which(command) is None]
    if missing:
        pytest.skip(f"nothing here runs AArch64 code: apt-get install {' '.join(missing)}")
    included = [
        tvm.libinfo.find_include_path(), tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()
    ]  # fmt: skip
    program = folder / "emulated_call"
    # The mathematical library for kernels that want it, as a Python process has it.
    libraries = ["-rdynamic", "-ldl", "-Wl,--no-as-needed", "-lm"]
    command = ["aarch64-linux-gnu-gcc", "-O1", "-Wall", "-Werror", *(f"-I{path}" for path in included)]
    subprocess.run([*command, "-o", str(program), str(SOURCE), *libraries], check=True)
    return program


def emulated(binary: bytes, program: Path, folder: Path) -> Callable[[Sequence[Array]], None]:
    """The entry of a binary, called with NumPy arrays."""
    library, request = folder / "kernel.so", folder / "call"
    library.write_bytes(binary)
    # The richest CPU that the emulator has.
    command = ["qemu-aarch64", "-cpu", "max", "-L", SYSROOT]
    command += [str(program), str(library), f"__tvm_ffi_{ENTRY}", str(request)]

    def call(operands: Sequence[Array]) -> None:
        request.write_bytes(np.int64(len(operands)).tobytes() + b"".join(map(_described, operands)))
        done = subprocess.run(command, check=False, capture_output=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"the emulator ended with {done.returncode}: {done.stderr.decode()}")
        after = np.frombuffer(done.stdout, np.uint8)
        for array in operands:
            memory = _memory(array)
            memory[:], after = after[: memory.size], after[memory.size :]
        assert not after.size

    return call


def _described(array: Array) -> bytes:
    memory = _memory(array)
    begin = array.ctypes.data - memory.ctypes.data if memory.size else 0
    code = BFLOAT if array.dtype == ml_dtypes.bfloat16 else DLPACK[array.dtype.kind]
    numbers = [code, 8 * array.itemsize, array.ndim, *array.shape, begin, memory.size]
    return np.array(numbers, np.int64).tobytes() + memory.tobytes()


def _memory(array: Array) -> NDArray[np.uint8]:
    """The bytes of all of the allocation that ``array`` lies in; an array without elements has none."""
    if not array.size:
        return np.zeros(0, np.uint8)
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.reshape(-1).view(np.uint8)
