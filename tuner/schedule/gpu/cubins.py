"""Machine code of an emitted module, made without a GPU: a cubin for each function, and the registers that ptxas gave
it."""

from __future__ import annotations

import atexit
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tuner.schedule.gpu.cubin import TF32_ELEMENT, Cubin, TensorMap, parameters_of, target_of
from tuner.schedule.gpu.functions import POINTERS
from tuner.schedule.gpu.module import Function, Launch, Module

CUOBJDUMP_TIMEOUT_S = 60.0
ALIGNED = [["tt.divisibility", 16]]
"""What a call is known to pass: pointers at multiples of 16 bytes."""


def loaded(text: str, folder: Path | None = None) -> ModuleType:
    """An emitted module as Python has it. Triton reads the source of its functions from a file, in ``folder``, or in
    one that stays until the process ends."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="emitted-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "emitted.py"
    path.write_text(text)
    name = f"emitted_{folder.name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compiled(module: Module, arch: str) -> list[Cubin]:
    """Every launch of a module for an instruction set, as in sm_90. Raises what Triton does where it refuses.

    Nothing is left on the disk: what Triton would keep for a second time is of kernels that are built once.
    """
    with tempfile.TemporaryDirectory(prefix="emitted-") as name, knobs.cache.scope():
        folder = Path(name)
        knobs.cache.dir = str(folder / "cache")
        functions = loaded(module.text, folder)
        try:
            return [
                _compiled(module, each, getattr(functions, each.function.name), arch, folder)
                for each in module.launches
            ]
        finally:
            del sys.modules[functions.__name__]


def _compiled(module: Module, launch: Launch, function: Any, arch: str, folder: Path) -> Cubin:
    signature, aligned = _signature(module, launch.function)
    source = ASTSource(function, signature, {}, {(place,): ALIGNED for place in aligned})
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    kernel = triton.compile(source, target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), options=options)
    metadata, ptx = kernel.metadata, kernel.asm["ptx"]
    if metadata.global_scratch_size:
        raise ValueError(f"{metadata.name} asks for {metadata.global_scratch_size} bytes of scratch memory of its own")
    registers, spilled = _resources(kernel.asm["cubin"], folder)
    maps = tuple(
        TensorMap(
            TF32_ELEMENT if matrix.is_rounded else each["elem_type"], each["elem_size"], each["swizzle"],
            tuple(each["block_size"]),
        )
        for matrix, each in zip(launch.function.descriptors, metadata.tensordesc_meta or (), strict=True)
    )  # fmt: skip
    return Cubin(
        metadata.name, kernel.asm["cubin"], ptx, metadata.shared, registers, spilled, launch.num_warps,
        target_of(ptx), parameters_of(ptx), maps,
    )  # fmt: skip


def _signature(module: Module, function: Function) -> tuple[dict[str, str], Sequence[int]]:
    """The types of a function's parameters, and the places of pointers."""
    dtypes = module.dtypes
    pointers = {f"p_{name}": POINTERS[dtypes[name]] for name in function.pointers}
    tiles = {
        each.name: f"tensordesc<{POINTERS[each.dtype][1:]}[{each.block[0]}, {each.block[1]}]>"
        for each in function.descriptors
    }
    symbols = {f"s_{symbol}": "i32" for symbol in function.symbols}
    return {**pointers, **tiles, **symbols}, range(len(pointers))


def _resources(binary: bytes, folder: Path) -> tuple[int, int]:
    """Registers of a thread, and the bytes that it keeps in local memory for want of more."""
    path = folder / "kernel.cubin"
    path.write_bytes(binary)
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CUOBJDUMP_TIMEOUT_S, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of a kernel's registers: {done.stdout.strip()[-500:]}")
    return int(found[1]), int(found[2])
