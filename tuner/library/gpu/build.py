"""Libraries for GPUs: the dispatcher by TVM, the launcher by a C compiler, machine code as it is, in one shared object.

ENTRY is that of other libraries (``codegen.entry_function``): the same tree chooses, the same checks refuse, but that
operands are on one GPU. Imports TVM; no GPU and no Triton is needed.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812
from tvm_ffi import structural

from tuner.errors import MachineFailed
from tuner.library import codegen
from tuner.library.dispatcher import Dispatcher, Tree
from tuner.library.gpu.source import BadCubins, GpuKernel, GpuSource
from tuner.library.machine_code import c_compiler, linked, object_code, tvm_target
from tuner.library.package import ENTRY, LibraryFiles, package
from tuner.program.language.workload import Workload
from tuner.program.target import Target, gpu_host
from tuner.schedule.gpu.cubin import Cubin
from tuner.schedule.gpu.module import Module
from tuner.schedule.layout import Layout, MatrixLayout

LOWERING = "shapewright-gpu"
"""The name that TVM knows our passes by."""
SET_DEVICE = "__tvm_set_device"
LAUNCH = "launch"
"""The function of C that runs a kernel: of the operands' pointers, the symbols, and the kernel's number."""
COMPILE_S = 120.0
"""The time that a C compiler may take."""
OPTIONS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-c", "-x", "c")


def build_gpu_library(
    dispatcher: Dispatcher,
    kernels: Sequence[tuple[Module, Sequence[Cubin]]],
    job_id: str | None = None,
    toolchain: Mapping[str, str] | None = None,
) -> LibraryFiles:
    """Link and package: the files of a library that computes on GPUs.

    ``kernels``: for each of the dispatcher's, in order, its module and the machine code of its launches; that for a
    second target stands behind that for the first. All have the same targets and pack constants alike. ``toolchain``:
    versions of what made the machine code, for the manifest.

    Raises BadCubins for code that is not that of its module, MachineFailed where there is no C compiler.
    """
    if len(kernels) != len(dispatcher.kernels):
        raise BadCubins(f"the dispatcher has {len(dispatcher.kernels)} kernels, {len(kernels)} are given")
    own = [GpuKernel.of(module, cubins) for module, cubins in kernels]
    layouts = _layouts([kernel.module for kernel in own])
    source, target = GpuSource(own), dispatcher.task.known_target
    host = gpu_host()
    objects = [
        _entry_object(dispatcher.task.workload, layouts, dispatcher.tree, target, host),
        _compiled(source, source.text(LAUNCH)),
    ]
    binary = linked(objects, host, {})
    tools = {**codegen.toolchain(), **(toolchain or {})}
    scripts = [kernel.module.text for kernel in own]
    return package(dispatcher, binary, None, tools, job_id, scripts, layouts, source.targets)


def build_launcher(kernels: Sequence[tuple[Module, Sequence[Cubin]]]) -> bytes:
    """A shared object that launches any of these kernels by its number, and needs nothing but NVIDIA's driver: it
    chooses none, and checks no shapes. Constants are packed as each module says. Raises as ``build_gpu_library`` does.
    """
    source = GpuSource([GpuKernel.of(module, cubins) for module, cubins in kernels])
    return linked([_compiled(source, source.alone())], gpu_host(), {})


def _layouts(modules: Sequence[Module]) -> dict[str, Layout]:
    """How constants are packed. Raises BadCubins where two modules differ."""
    first, *others = (
        {pack.tensor: MatrixLayout(pack.shape, pack.order, pack.matrix) for pack in module.packs} for module in modules
    )
    for other in others:
        if other != first:
            raise BadCubins(f"kernels of one library share their packed layouts, got {first} and {other}")
    return dict(first)


# -- the dispatcher ---------------------------------------------------------------------------------------------------
def _entry_object(workload: Workload, layouts: Mapping[str, Layout], tree: Tree, target: Target, host: Target) -> bytes:
    """The object file of ENTRY, which calls LAUNCH."""

    def write(passed: Sequence[Any], dims: Mapping[str, Any]) -> None:
        # One call: LLVM would give a second declaration of a function another name.
        I.evaluate(tirx.call_cpacked(LAUNCH, *passed, codegen.chosen(tree, dims)))

    module = tvm.IRModule({ENTRY: codegen.entry_function(workload, layouts, write)})
    gpu = tvm.target.Target({"kind": "cuda", "arch": target.mcpu}, host=tvm_target(host, codegen.ENTRY_LEVEL))
    return object_code(tvm.compile(module, target=gpu, tir_pipeline=LOWERING))


def _handed_device(function: Any, _module: Any, _context: Any) -> Any:
    """Kernels are told the number of the GPU, as their last argument; TVM's runtime, which need not be there, is not
    asked to choose it."""
    numbers: list[Any] = []

    def unset(call: Any) -> Any:
        if not _calls(call, "tirx.tvm_call_packed") or call.args[0].value != SET_DEVICE:
            return call
        numbers.append(call.args[2])
        return tirx.IntImm("int32", 0)

    def told(call: Any) -> Any:
        if not _calls(call, "tirx.tvm_call_cpacked"):
            return call
        return tirx.call_cpacked(call.args[0].value, *list(call.args)[1:], number)

    body = structural.structural_map(function.body, [(tvm.ir.Call, unset)])
    (number,) = numbers
    return function.with_body(structural.structural_map(body, [(tvm.ir.Call, told)]))


def _calls(call: Any, name: str) -> bool:
    return bool(call.op.same_as(tvm.ir.Op.get(name)))


def _lowering() -> tuple[Any, Any, Any]:
    return codegen.lowering(tirx.transform.prim_func_pass(_handed_device, opt_level=0, name="shapewright.HandedDevice"))


tirx.register_tir_pipeline(LOWERING, _lowering)


# -- the launcher -----------------------------------------------------------------------------------------------------
def _compiled(source: GpuSource, text: str) -> bytes:
    """The object file of a library's C, with its machine code. Raises MachineFailed where nothing compiles it."""
    with tempfile.TemporaryDirectory(prefix="shapewright-gpu-") as folder:
        for binary, name in source.binaries.items():
            (Path(folder) / name).write_bytes(binary)
        (Path(folder) / "launcher.c").write_text(text)
        command = [c_compiler(), *OPTIONS, "launcher.c", "-o", "launcher.o"]
        # Names of files stand in the code: it is compiled where they are, so that they are the same everywhere.
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=COMPILE_S)
        if done.returncode:
            raise MachineFailed(f"{command[0]} cannot compile the launcher: {done.stderr.strip()[-2000:]}")
        return (Path(folder) / "launcher.o").read_bytes()
