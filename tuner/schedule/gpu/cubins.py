"""Machine code of an emitted module, made without a GPU: a cubin for each function, and what ptxas says of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tuner.program.language.workload import Workload
from tuner.program.target.cuda import Gpu
from tuner.schedule.gpu.cubin import Cubin, TensorMap, parameters_of, target_of
from tuner.schedule.gpu.functions import POINTERS
from tuner.schedule.gpu.module import Function, Launch, Module
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.gpu.tiling import Tiling

PTXAS_TIMEOUT_S = 120.0
ALIGNED = [["tt.divisibility", 16]]
"""What a call is known to pass: pointers at multiples of 16 bytes."""


def loaded(text: str) -> ModuleType:
    """An emitted module as Python has it. Triton reads the source of its functions from a file, which stays until the
    process ends."""
    folder = Path(tempfile.mkdtemp(prefix="emitted-"))
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
    """Every launch of a module for an instruction set, as in sm_90. Raises what Triton does where it refuses."""
    functions = loaded(module.text)
    return [_compiled(module, launch, getattr(functions, launch.function.name), arch) for launch in module.launches]


def fitting(workload: Workload, tilings: Iterable[Tiling], gpu: Gpu) -> Iterator[tuple[Tiling, list[Cubin]]]:
    """The tilings of a workload's products that compile to kernels that fit a GPU and spill nothing, in their order."""
    for tiling in tilings:
        made = compiled(emit(workload, Choices(product=tiling)), gpu.arch)
        if all(each.fits(gpu.architecture.block_shared_bytes) for each in made):
            yield tiling, made


def _compiled(module: Module, launch: Launch, function: Any, arch: str) -> Cubin:
    signature, aligned = _signature(module, launch.function)
    source = ASTSource(function, signature, {}, {(place,): ALIGNED for place in aligned})
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    kernel = triton.compile(source, target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), options=options)
    metadata, ptx = kernel.metadata, kernel.asm["ptx"]
    if metadata.global_scratch_size:
        raise ValueError(f"{metadata.name} asks for {metadata.global_scratch_size} bytes of scratch memory of its own")
    registers, spilled = _resources(ptx, arch)
    maps = tuple(
        TensorMap(each["elem_type"], each["elem_size"], each["swizzle"], tuple(each["block_size"]))
        for each in metadata.tensordesc_meta or ()
    )
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


def _resources(ptx: str, arch: str) -> tuple[int, int]:
    """Registers and spilled bytes of PTX."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [
            get_ptxas(int(arch.removeprefix("sm_"))).path,
            "-v",
            f"--gpu-name={target_of(ptx)}",
            str(path),
            "-o",
            os.devnull,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PTXAS_TIMEOUT_S, check=True)
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spilled = re.search(r"(\d+) bytes spill stores", done.stderr)
    return int(registers[1]) if registers else 0, int(spilled[1]) if spilled else 0
